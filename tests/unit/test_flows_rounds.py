"""Models that train together: the loop that keeps rates from phase to phase, against one that does not.

The reference below shares nothing with it but the rates of :func:`max_min`'s reference engine: every flow is
an object, every rate is found anew at every event, and a model is a generator of its phases.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import LocalMisuse
from inaproto_hil.evaluation.flows.max_min import Engine, max_min
from inaproto_hil.evaluation.flows.paths import NO_LINK, Floats, Paths
from inaproto_hil.evaluation.flows.rounds import Training, floors, train
from tests.unit.test_flows_max_min import path_table

NEAR = 1e-9


class Model:
    """What it does next: computes until a time, or carries what is left of the flows of a phase."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.steps = self._steps()
        self.until: float | None = None
        self.flows: list[list[int]] = []
        self.left: list[float] = []
        self.ended: float | None = None

    def _steps(self) -> Iterator[Paths | None]:
        for _ in range(self.training.rounds):
            yield None
            yield from self.training.phases

    def begin_next(self, now: float) -> None:
        self.until, self.flows, self.left = None, [], []
        try:
            step = next(self.steps)
        except StopIteration:
            self.ended = now
            return
        if step is None:
            self.until = now + self.training.compute
            return
        ways = [step.links[step.first[flow] : step.first[flow + 1]].tolist() for flow in range(len(step))]
        self.flows = [way for way in ways if way]
        self.left = [self.training.volume] * len(self.flows)

    def is_done(self, now: float) -> bool:
        return not self.flows if self.until is None else self.until <= now * (1 + NEAR)


def trained(capacities: Floats, trainings: list[Training]) -> list[float]:
    models = [Model(one) for one in trainings]
    now = 0.0
    for model in models:
        model.begin_next(now)
    while any(model.ended is None for model in models):
        for model in models:
            while model.ended is None and model.is_done(now):
                model.begin_next(now)
        ways = [way for model in models for way in model.flows]
        classes = [model.training.priority for model in models for _ in model.flows]
        rates = max_min(
            capacities,
            path_table(*ways) if ways else Paths.of_table(np.full((0, 1), NO_LINK, np.int32)),
            classes=np.array(classes, np.int64),
            engine=Engine.REFERENCE,
        )
        left = [one for model in models for one in model.left]
        ends = [volume / rate for volume, rate in zip(left, rates, strict=True) if rate > 0]
        ends += [model.until - now for model in models if model.until is not None]
        if not ends:
            break
        step = min(ends)
        now += step
        of = iter(rates)
        for model in models:
            model.left = [volume - next(of) * step for volume in model.left]
            kept = [at for at, volume in enumerate(model.left) if volume > NEAR * model.training.volume]
            model.flows = [model.flows[at] for at in kept]
            model.left = [model.left[at] for at in kept]
    return [model.ended or 0.0 for model in models]


def drawn_trainings(seed: int, links: int, *, kinds: int) -> list[Training]:
    """Volumes and times of few values, so that many things happen at one time."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(draw.integers(1, 6)):
        phases = []
        for _ in range(draw.integers(1, 3)):
            flows = draw.integers(1, 9)
            hops = draw.integers(0, 3, flows)
            phases.append(path_table(*[draw.permutation(links)[:count].tolist() for count in hops]))
        compute = float(draw.choice([0.0, 1.0, 2.0, 2.5]))
        rounds, priority = int(draw.integers(1, 4)), int(draw.integers(0, kinds))
        found.append(Training(phases, float(draw.choice([0.5, 1.0])), compute, rounds, priority))
    return found


@given(st.integers(0, 2**32), st.integers(2, 8), st.sampled_from([1, 2, 5]))
def test_models_end_when_they_do_if_every_rate_is_found_anew(seed: int, links: int, kinds: int) -> None:
    trainings = drawn_trainings(seed, links, kinds=kinds)
    capacities = np.random.default_rng(seed + 1).choice([0.5, 1.0], links)
    assert train(capacities, trainings) == pytest.approx(trained(capacities, trainings), rel=1e-6, abs=1e-9)


@given(st.integers(0, 2**32), st.integers(2, 8), st.sampled_from([1, 2, 5]))
def test_no_model_ends_before_its_flows_can_have_been_carried(seed: int, links: int, kinds: int) -> None:
    trainings = drawn_trainings(seed, links, kinds=kinds)
    capacities = np.random.default_rng(seed + 1).choice([0.5, 1.0], links)
    ends = np.sort(train(capacities, trainings))
    assert (ends >= floors(capacities, trainings) * (1 - NEAR)).all()


def test_floors_are_reached_by_models_that_share_one_link_by_priority() -> None:
    """The first has its 1 done at 1, two models together 2 at 2, and so on; and one that computes for 5 first
    ends no sooner than at 6, though the link has carried all at 4."""
    models = [Training([path_table([0])], 1.0, 0.0, 1, one) for one in range(3)]
    assert floors(np.ones(1), models).tolist() == train(np.ones(1), models) == [1.0, 2.0, 3.0]
    late = Training([path_table([0])], 1.0, 5.0, 1)
    assert floors(np.ones(1), [*models, late]).tolist() == [1.0, 2.0, 3.0, 6.0]


@pytest.mark.parametrize(("flows", "end"), [(1, 4.0), (2, 4.0), (3, 5.0), (4, 6.0)])
def test_flows_that_end_with_another_models_last_one_have_ended_once(flows: int, end: float) -> None:
    """At 4 the first model's phase ends and so does the second's flow beside it; the first then computes, and
    the second goes on carrying ``flows`` on the other link until 2 + flows."""
    second = Training([path_table([0], *[[1]] * flows)], 1.0, 2.0, 1)
    assert train(np.ones(2), [alone_once(rounds=3), second]) == [10.0, end]


@pytest.mark.parametrize(("flows", "end"), [(1, 4.0), (2, 4.0), (3, 5.0)])
def test_flows_of_a_higher_model_that_end_as_a_lower_one_begins_have_ended_once(
    flows: int, end: float
) -> None:
    """The low model's pull begins at 4, when it has pushed; two flows of the high one end then, too."""
    high = Training([path_table([0], [0], *[[1]] * flows)], 1.0, 2.0, 1, 0)
    low = Training([path_table([2]), path_table([0])], 2.0, 2.0, 1, 1)
    assert train(np.ones(3), [high, low]) == [end, 6.0]


@pytest.mark.parametrize("phases", [1, 2])
def test_a_phase_that_follows_upon_itself_without_computing_takes_as_long_each_time(phases: int) -> None:
    path = path_table([0], [0], [0, 1])
    models = [Training([path] * phases, 1.0, 0.0, 3) for _ in range(2)]
    assert train(np.ones(2), models) == pytest.approx([18.0 * phases] * 2)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_of_models_that_share_one_link_priorities_halve_the_median_and_leave_the_tail(count: int) -> None:
    """By hand: n models, one round of 1 with nothing to compute. Fair shares: all end at n. By priority: the
    i-th at i, so the mean is (n + 1) / 2, and the last at n as before."""
    fair = train(np.ones(1), [Training([path_table([0])], 1.0, 0.0, 1)] * count)
    assert fair == pytest.approx([float(count)] * count)
    strict = train(np.ones(1), [Training([path_table([0])], 1.0, 0.0, 1, one) for one in range(count)])
    assert strict == pytest.approx([one + 1.0 for one in range(count)])


def test_two_models_that_compute_for_as_long_as_they_carry_need_not_meet_with_priorities() -> None:
    """By hand: compute 1, carry 1, four rounds. Fair: each round 1 + 2, both end at 12. Strict: the high one
    ends at 8, as if alone; the low one waits once, for 1, and then carries while the high one computes: 9. So
    the tail gains as well as the median."""
    fair = [Training([path_table([0])], 1.0, 1.0, 4) for _ in range(2)]
    assert train(np.ones(1), fair) == [12.0, 12.0]
    strict = [Training([path_table([0])], 1.0, 1.0, 4, one) for one in range(2)]
    assert train(np.ones(1), strict) == [8.0, 9.0]


def alone(priority: int = 0, *, compute: float = 2.0) -> Training:
    paths = path_table([0])
    return Training([paths, paths], 1.0, compute, 3, priority)


def alone_once(*, rounds: int) -> Training:
    return Training([path_table([0])], 1.0, 2.0, rounds)


def test_a_model_alone_computes_pushes_and_pulls_in_each_round() -> None:
    assert train(np.ones(1), [alone()]) == [12.0]


def test_two_models_share_a_link_and_each_ends_when_both_have_what_they_need() -> None:
    assert train(np.ones(1), [alone(), alone()]) == [18.0, 18.0]


def test_the_high_model_ends_as_if_alone_and_the_low_one_uses_what_it_leaves() -> None:
    """While the high one computes for 2 the low one has the link: each of its rounds takes two turns."""
    high, low = train(np.ones(1), [alone(1), alone(0)])[::-1]
    assert high == 12.0
    assert low == 14.0


def test_phases_with_flows_of_one_host_alone_take_no_time() -> None:
    nothing = Paths.of_table(np.full((1, 1), -1, np.int32))
    assert train(np.ones(1), [Training([nothing], 1.0, 2.0, 3)]) == [6.0]


def test_a_model_without_rounds_is_refused() -> None:
    with pytest.raises(LocalMisuse):
        train(np.ones(1), [Training([path_table([0])], 1.0, 2.0, 0)])
