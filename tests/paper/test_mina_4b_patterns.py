"""MINA, section IV-B: the communication pattern of a job, from its calls: measured traces are replayed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from inaproto.core.sharing.communication_pattern import (
    Loss,
    Pattern,
    PatternAction,
    PatternConfig,
    PatternEvent,
    PatternFound,
    PatternLost,
    PatternWatch,
    Submitted,
    WaitBegan,
    WaitEnded,
)
from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.units import MS, Instant, S
from inaproto_controller.cluster.model import SHARING, measured, measured_names
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from tests.seeds import seeds

CONFIG = PatternConfig()
TRACES = measured_names()
QUICK = "vit-base-4"
FULL_SPEED = Speeds(SHARING.bandwidth, 1.5, SHARING.latency)
"""Of a trace as it was measured."""


def exact(trace: ModelTrace) -> Pattern:
    return Pattern(trace.nbytes, tuple(round(at * S) for at in trace.ready), round(trace.duration * S))


class Job:
    """Calls of a process that trains: operations are submitted when they are ready, whether or not those
    before them have ended; the framework then waits for the last."""

    def __init__(
        self,
        *,
        speeds: Speeds = FULL_SPEED,
        noise_ns: int = 0,
        seed: int = 0,
        tells_ends: bool = True,
    ) -> None:
        self.now = 0
        self.calls: list[tuple[Instant, PatternEvent]] = []
        self._speeds = speeds
        self._noise_ns = noise_ns
        self._random = random.Random(f"{seed}/pattern")
        self._tells_ends = tells_ends

    def train(self, trace: ModelTrace, steps: int, *, operations: int | None = None) -> None:
        """``operations``: the step is cut off after so many."""
        for _ in range(steps):
            end = last = self.now
            for start, nbytes in list(zip(trace.ready, trace.nbytes, strict=True))[:operations]:
                last = max(last, self.now + self._noisy(start))
                self.calls.append((Instant(last), Submitted(nbytes)))
                end = max(end, last) + round(S * self._speeds.operation(nbytes, hosts=2, ina=False))
            waits = max(last, self.now + self._noisy(trace.duration)) if operations is None else last
            self.calls.append((Instant(waits), WaitBegan()))
            self.now = max(end, waits)
            if self._tells_ends:
                self.calls.append((Instant(self.now), WaitEnded()))

    def _noisy(self, seconds: float) -> int:
        return round(seconds * S) + self._random.randint(-self._noise_ns, self._noise_ns)


def watch(job: Job, config: PatternConfig = CONFIG) -> tuple[PatternWatch, list[PatternAction]]:
    core = PatternWatch(config)
    return core, told(core, job.calls)


def told(core: PatternWatch, calls: Iterable[tuple[Instant, PatternEvent]]) -> list[PatternAction]:
    return [action for now, event in calls for action in core.step(event, now)]


def within(found: Pattern, expected: Pattern, bound_ns: int) -> bool:
    return found.nbytes == expected.nbytes and found.moved_by(expected) <= bound_ns


@pytest.mark.parametrize("name", TRACES)
def test_the_pattern_of_a_measured_model_is_its_trace(name: str) -> None:
    job = Job()
    job.train(measured(name), 9)
    core, actions = watch(job)
    assert actions == [PatternFound(exact(measured(name)), 8 * len(measured(name).ready))]
    assert core.view().pattern == exact(measured(name))


@pytest.mark.parametrize("name", TRACES)
def test_noise_of_starts_leaves_the_pattern_within_the_noise(name: str) -> None:
    noise = 300_000
    for seed in range(5):
        job = Job(noise_ns=noise, seed=seed)
        job.train(measured(name), 30)
        _, actions = watch(job)
        (found,) = actions
        assert isinstance(found, PatternFound)
        assert within(found.pattern, exact(measured(name)), noise)


@pytest.mark.parametrize("name", TRACES)
def test_an_operation_starts_when_it_is_submitted_however_long_it_stands_behind_another(name: str) -> None:
    """A network ten times as slow: operations queue, and the pattern is the same."""
    job = Job(speeds=Speeds(SHARING.bandwidth / 10, 1.0, 1e-3))
    job.train(measured(name), 9)
    times = StepTimes(measured(name), Speeds(SHARING.bandwidth / 10, 1.0, 1e-3), hosts=2)
    assert times.step_plain > 1.5 * times.duration, "operations stand behind others"
    assert watch(job)[1] == [PatternFound(exact(measured(name)), 8 * times.count)]


@pytest.mark.parametrize("name", TRACES)
def test_from_starts_alone_the_pattern_is_the_trace_but_for_what_was_waited(name: str) -> None:
    job = Job(tells_ends=False)
    job.train(measured(name), 9)
    (found,) = watch(job)[1]
    assert isinstance(found, PatternFound)
    expected = exact(measured(name))
    waited = found.pattern.ready_ns[0] - expected.ready_ns[0]
    assert waited >= 0
    assert [at - waited for at in found.pattern.ready_ns] == list(expected.ready_ns)
    assert found.pattern.duration_ns - waited == expected.duration_ns
    alone = StepTimes(measured(name), FULL_SPEED, hosts=2)
    assert waited == pytest.approx((alone.step_plain - alone.duration) * S, abs=1_000)


def test_steps_of_the_warm_up_are_not_part_of_the_pattern() -> None:
    """A framework that lays out its gradients anew after its first step, and compiles in the second."""
    trace = measured(QUICK)
    odd = ModelTrace("odd", 3.0, (1.0, 2.0), (1_000, 2_000))
    slow = ModelTrace("slow", 3 * trace.duration, tuple(3 * at for at in trace.ready), trace.nbytes)
    job = Job()
    job.train(odd, 1)
    job.train(slow, 2)
    job.train(trace, 5)
    config = PatternConfig(warmup_steps=3, steps=5)
    assert watch(job, config)[1] == [], "the last step ends when the next begins"
    job.train(trace, 1)
    assert watch(job, config)[1] == [PatternFound(exact(trace), 2 + 7 * len(trace.ready))]
    found = watch(job, PatternConfig(warmup_steps=0, steps=2))[1][0]
    assert isinstance(found, PatternFound)
    assert found.pattern != exact(trace), "two steps that compile repeat, too"


def test_a_step_that_is_cut_off_is_said_and_the_pattern_is_measured_again() -> None:
    trace = measured(QUICK)
    job = Job()
    job.train(trace, 10)
    job.train(trace, 1, operations=4)
    job.train(trace, 6)
    before, lost, after = watch(job)[1]
    count = len(trace.ready)
    assert isinstance(before, PatternFound)
    assert lost == PatternLost(exact(trace), Loss.EARLY_WAIT, 10 * count + 4)
    assert after == PatternFound(exact(trace), 10 * count + 4 + 5 * count)


def test_what_is_seen_first_may_be_the_end_of_a_step() -> None:
    trace = measured(QUICK)
    job = Job()
    job.train(trace, 12)
    core = PatternWatch(PatternConfig(warmup_steps=0))
    (found,) = told(core, job.calls[7:])
    assert found == PatternFound(exact(trace), 6 * len(trace.ready) - 7)


@pytest.mark.parametrize("name", TRACES)
def test_another_model_in_the_middle_is_another_pattern(name: str) -> None:
    before, after = measured(name), measured(QUICK if name != QUICK else "vit-large-16")
    job = Job(noise_ns=200_000, seed=4)
    job.train(before, 10)
    job.train(after, 14)
    first, lost, second = watch(job)[1]
    assert isinstance(first, PatternFound)
    assert isinstance(lost, PatternLost)
    count = len(before.ready)
    if before.nbytes == after.nbytes:
        assert lost.loss is Loss.MOVED
        assert 10 * count <= lost.operation <= 17 * count, "median over five steps, compared every five"
    else:
        assert lost.loss in (Loss.SIZE, Loss.MORE, Loss.EARLY_WAIT)
        assert 0 <= lost.operation - 10 * count <= min(count, len(after.ready))
    assert isinstance(second, PatternFound)
    assert within(second.pattern, exact(after), 200_000)


def test_starts_that_move_are_measured_again_and_said() -> None:
    trace = measured(QUICK)
    slower = ModelTrace("slower", 1.2 * trace.duration, tuple(1.2 * at for at in trace.ready), trace.nbytes)
    job = Job(noise_ns=100_000, seed=5)
    job.train(trace, 20)
    job.train(slower, 20)
    first, lost, second, *more = watch(job)[1]
    assert isinstance(first, PatternFound)
    assert isinstance(lost, PatternLost)
    assert lost.loss is Loss.MOVED
    assert isinstance(second, PatternFound)
    assert within(second.pattern, exact(slower), 100_000)
    assert more == []


def test_on_a_busy_machine_starts_that_scatter_are_no_other_pattern() -> None:
    trace = measured(QUICK)
    lost = {0.0: 0, CONFIG.moved_scatter: 0}
    for seed in range(6):
        job = Job(noise_ns=round(0.12 * trace.duration * S), seed=seed)
        job.train(trace, 60)
        for scatter in lost:
            core, _ = watch(job, replace(CONFIG, moved_scatter=scatter))
            lost[scatter] += core.view().lost
    assert lost[0.0] > 20
    assert lost[CONFIG.moved_scatter] <= lost[0.0] / 10


def test_a_pattern_that_has_moved_is_known_again_at_once() -> None:
    trace = measured(QUICK)
    slower = ModelTrace("slower", 1.2 * trace.duration, tuple(1.2 * at for at in trace.ready), trace.nbytes)
    job = Job()
    job.train(trace, 20)
    job.train(slower, 20)
    core = PatternWatch(CONFIG)
    actions = [action for now, event in job.calls for action in core.step(event, now)]
    lost, found = actions[1], actions[2]
    assert isinstance(lost, PatternLost)
    assert isinstance(found, PatternFound)
    assert found.step == lost.operation
    assert found.step % len(trace.nbytes) == 0, "a step begins there"


def test_a_few_slow_steps_are_no_other_pattern() -> None:
    trace = measured(QUICK)
    slow = ModelTrace("slow", 2 * trace.duration, tuple(2 * at for at in trace.ready), trace.nbytes)
    job = Job()
    job.train(trace, 9)
    for _ in range(6):
        job.train(slow, 2)
        job.train(trace, 3)
    assert len(watch(job)[1]) == 1


def test_a_step_may_wait_in_its_middle_and_is_still_one_step() -> None:
    """Two waits a step, of which the one before the forward pass ends it, wherever watching began."""
    first = ModelTrace("first", 0.050, (0.030, 0.040), (1_000, 2_000))
    second = ModelTrace("second", 0.020, (0.010, 0.010), (1_000, 4_000))
    job = Job()
    for _ in range(14):
        job.train(first, 1)
        job.train(second, 1)
    for cut in (0, 1, 4, 5):
        core = PatternWatch(PatternConfig())
        (found,) = told(core, job.calls[cut:])
        assert isinstance(found, PatternFound)
        assert found.pattern.nbytes == (1_000, 2_000, 1_000, 4_000)
        assert found.pattern.ready_ns[:2] == (30 * MS, 40 * MS)
        assert found.pattern.waits_inside == 1
        submitted = sum(isinstance(event, Submitted) for _, event in job.calls[:cut])
        assert (found.step + submitted) % 4 == 0


def test_equal_segments_with_a_ninth_that_differs_are_a_step_of_nine() -> None:
    """Gradient accumulation that reduces each time: it looks like a step of one until the ninth was seen."""
    small = ModelTrace("small", 0.010, (0.005,), (1_000,))
    large = ModelTrace("large", 0.030, (0.020,), (8_000,))
    job = Job()
    for _ in range(20):
        job.train(small, 8)
        job.train(large, 1)
    core, actions = watch(job)
    pattern = core.view().pattern
    assert pattern is not None
    assert sorted(pattern.nbytes) == [1_000] * 8 + [8_000]
    assert core.view().lost == 8, "once a step, until it repeated often enough behind the warm-up"
    lost = [action.operation for action in actions if isinstance(action, PatternLost)]
    assert max(lost) < 90


def test_a_job_that_never_waits_is_forgotten_in_bounded_memory() -> None:
    core = PatternWatch(PatternConfig(history_operations_max=50))
    for number in range(10_000):
        assert core.step(Submitted(1 + number % 7), Instant(number)) == []
        assert core.view().operations_kept <= 50


def test_patterns_of_hosts_make_that_of_the_job() -> None:
    """All ranks take part in an operation: it starts when the last is ready."""
    one, two = Pattern((1, 2), (10, 20), 30), Pattern((1, 2), (12, 18), 29)
    assert Pattern.of_job([one, two]) == Pattern((1, 2), (12, 20), 30)
    assert Pattern.of_job([one, Pattern((1, 3), (12, 18), 29)]) is None
    assert one.trace("job") == ModelTrace("job", 30 / S, (10 / S, 20 / S), (1, 2))


@pytest.mark.parametrize("seed", seeds(200))
def test_any_calls_in_any_order_keep_the_bounds(seed: int) -> None:
    draw = random.Random(f"{seed}/calls")
    config = PatternConfig(
        warmup_steps=draw.randrange(3),
        steps=draw.randint(2, 4),
        history_operations_max=40,
        history_segments_max=12,
    )
    core = PatternWatch(config)
    sizes = draw.randint(1, 3)
    odds = [draw.random() for _ in range(3)]
    now, found = 0, False
    for _ in range(draw.randint(1, 400)):
        now += draw.randrange(5 * MS)
        events: Sequence[PatternEvent] = (Submitted(draw.randint(1, sizes)), WaitBegan(), WaitEnded())
        (event,) = draw.choices(events, odds)
        for action in core.step(event, Instant(now)):
            assert isinstance(action, PatternLost) is found, "found and lost alternate"
            found = not found
            starts = (*action.pattern.ready_ns, action.pattern.duration_ns)
            assert all(one <= two for one, two in pairwise(starts))
            assert len(action.pattern.nbytes) == len(action.pattern.ready_ns)
        view = core.view()
        assert view.operations_kept <= 40
        assert view.segments_kept <= 12
        assert (view.pattern is not None) is found is (view.found > view.lost)


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    core = PatternWatch(PatternConfig())
    before = core.view()
    with pytest.raises(LocalMisuse):
        core.step(Submitted(0), Instant(1))
    assert core.view() == before
    for wrong in ({"steps": 1}, {"warmup_steps": -1}, {"history_segments_max": 2}, {"moved_ns": -1}):
        with pytest.raises(ConfigError):
            PatternConfig(**wrong)
