"""The event loop's long steps are counted and named, whatever else the machine does."""

from __future__ import annotations

import pytest
import trio

from inaproto.daemon.observe import loop_watch
from inaproto.daemon.observe.loop_watch import LONG_S, LoopWatch
from inaproto.daemon.observe.metric_families import Families


class Clocks:
    """Time that passes where a test says so: the machine's own would count what else it does, too."""

    def __init__(self) -> None:
        self.passed = self.worked = 0.0

    def work(self, seconds: float, *, of_the_machine: float = 0.0) -> None:
        self.worked += seconds
        self.passed += seconds + of_the_machine


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(loop_watch, "perf_counter", lambda: made.passed)
    monkeypatch.setattr(loop_watch, "thread_time", lambda: made.worked)
    return made


async def watched(clocks: Clocks, of_the_machine: float) -> LoopWatch:
    async def computes(seconds: float) -> None:
        clocks.work(seconds, of_the_machine=of_the_machine)
        await trio.lowlevel.checkpoint()

    watch = LoopWatch()
    trio.lowlevel.add_instrument(watch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(computes, 2 * LONG_S, name="planner")
        nursery.start_soon(computes, 0.0, name="other")
    trio.lowlevel.remove_instrument(watch)
    return watch


async def test_a_step_that_keeps_all_others_waiting_is_named(clocks: Clocks) -> None:
    status = (await watched(clocks, of_the_machine=1.0)).status()
    assert status["long"] == 1
    assert status["longest_task"] == "planner"
    assert status["longest_s"] == 1.0 + 2 * LONG_S
    assert status["longest_cpu_s"] == 2 * LONG_S
    assert status["busy_s"] == 2.0 + 2 * LONG_S
    assert sum(status["buckets"].values()) == status["steps"] >= 3


async def test_a_step_took_what_it_worked_at_least(clocks: Clocks) -> None:
    """Two clocks of one machine tick apart by some microseconds."""
    status = (await watched(clocks, of_the_machine=-2e-6)).status()
    assert status["longest_s"] == status["longest_cpu_s"] == 2 * LONG_S


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
