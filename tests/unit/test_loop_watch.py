"""The event loop's long steps are counted and named, whatever else the machine does."""

from __future__ import annotations

from time import thread_time

import trio

from inaproto.daemon.observe.loop_watch import LONG_S, LoopWatch
from inaproto.daemon.observe.metric_families import Families


async def computes(seconds: float) -> None:
    until = thread_time() + seconds
    while thread_time() < until:
        pass
    await trio.lowlevel.checkpoint()


async def test_a_step_that_keeps_all_others_waiting_is_named() -> None:
    watch = LoopWatch()
    trio.lowlevel.add_instrument(watch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(computes, 2 * LONG_S, name="planner")
        nursery.start_soon(computes, 0.0, name="other")
    trio.lowlevel.remove_instrument(watch)
    status = watch.status()
    assert status["long"] == 1
    assert status["longest_task"] == "planner"
    assert status["longest_s"] >= status["longest_cpu_s"] >= 2 * LONG_S
    assert sum(status["buckets"].values()) == status["steps"] >= 3


async def test_a_wait_is_no_step(autojump_clock: object) -> None:
    watch = LoopWatch()
    trio.lowlevel.add_instrument(watch)
    await trio.sleep(3600)
    trio.lowlevel.remove_instrument(watch)
    assert watch.longest_cpu_s < 3600
    assert watch.seconds < 3600


def test_buckets_are_cumulative_where_they_are_scraped() -> None:
    made = Families()
    made.histogram("steps_seconds", "What steps took.", {"0.5": 3, "1.0": 2, "inf": 1}, 4.5)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in made.made
        for sample in family.samples
    }
    assert samples == {
        ("inaproto_steps_seconds_bucket", "0.5"): 3,
        ("inaproto_steps_seconds_bucket", "1.0"): 5,
        ("inaproto_steps_seconds_bucket", "+Inf"): 6,
        ("inaproto_steps_seconds_count", None): 6,
        ("inaproto_steps_seconds_sum", None): 4.5,
    }
