"""Priorities of models on a host's access link (MLNet section 3.3; docs/protocol.md 18.11).

The link is a fluid one in virtual time: what transfers want of it in a millisecond is shared max-min, as TCP
would, under the limits that the core under test has told them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.models.admission import (
    Admission,
    AdmissionAction,
    AdmissionConfig,
    Began,
    Ended,
    Limit,
    Moved,
    Refused,
    Woke,
    max_min,
)
from inaproto.errors import LocalMisuse
from inaproto.units import MS, Instant, S

RATE = 1_250_000_000
"""10 Gbit/s in bytes/s."""
TICK_NS = MS


@dataclass
class Model:
    """Computes for ``compute_ticks``, then moves ``nbytes`` over the link; ``rounds`` times."""

    priority: int
    nbytes: int
    compute_ticks: int
    rounds: int
    uplink: int = RATE
    left: int = 0
    resting: int = 0
    finished: int | None = None

    def __post_init__(self) -> None:
        self.resting = self.compute_ticks


@dataclass
class Link:
    """In virtual time; ``admission`` None: TCP alone."""

    admission: Admission | None
    models: list[Model]
    tick: int = 0
    limits: dict[Hashable, int | None] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    """Ticks in which a model waited, and more than a tenth of the link was free."""

    def run(self, ticks: int) -> None:
        for self.tick in range(ticks):
            if all(model.finished is not None for model in self.models):
                return
            self._pass()

    def _say(self, event: Began | Moved | Ended | Woke) -> None:
        if self.admission is not None:
            self._obey(self.admission.step(event, Instant(self.tick * TICK_NS)))

    def _obey(self, actions: list[AdmissionAction]) -> None:
        for action in actions:
            assert isinstance(action, Limit)
            self.limits[action.transfer] = action.rate

    def _pass(self) -> None:
        for name, model in enumerate(self.models):
            if model.finished is None and not model.left:
                model.resting -= 1
                if model.resting <= 0:
                    model.left = model.nbytes
                    self.limits[name] = None
                    self._say(Began(name, model.priority))
        moving = [name for name, model in enumerate(self.models) if model.left]
        per_tick = RATE * TICK_NS // S
        wishes: list[int | None] = [self._wish(name) for name in moving]
        granted = _tcp(per_tick, wishes)
        if (
            moving
            and sum(granted) < per_tick * 9 // 10
            and any(
                got < min(self.models[name].left, self.models[name].uplink * TICK_NS // S)
                for name, got in zip(moving, granted, strict=True)
            )
        ):
            self.idle.append(self.tick)
        for name, got in zip(moving, granted, strict=True):
            self._move(name, got)
        self._say(Woke())

    def _wish(self, name: int) -> int:
        model, limit = self.models[name], self.limits[name]
        wish = min(model.left, model.uplink * TICK_NS // S)
        return wish if limit is None else min(wish, max(1, limit * TICK_NS // S))

    def _move(self, name: int, nbytes: int) -> None:
        model = self.models[name]
        model.left -= nbytes
        self._say(Moved(name, nbytes))
        if not model.left:
            self._say(Ended(name))
            model.resting, model.rounds = model.compute_ticks, model.rounds - 1
            if not model.rounds:
                model.finished = self.tick + 1


def _tcp(capacity: int, wishes: list[int | None]) -> list[int]:
    """Max-min: fairness of TCP; written anew, so that it can judge the core's own."""
    granted = [0] * len(wishes)
    open_ = list(range(len(wishes)))
    while open_ and capacity >= len(open_):
        even = capacity // len(open_)
        for nth in list(open_):
            wish = wishes[nth]
            more = even if wish is None else min(even, wish - granted[nth])
            granted[nth] += more
            capacity -= more
            if wish is not None and granted[nth] == wish:
                open_.remove(nth)
    return granted


def _admission() -> Admission:
    return Admission(AdmissionConfig(rate=RATE))


def _times(models: list[Model], *, with_priorities: bool) -> list[int]:
    link = Link(_admission() if with_priorities else None, models)
    link.run(200_000)
    return [model.finished or 0 for model in models]


def _pair() -> list[Model]:
    """Two models that want two thirds of the link each."""
    return [Model(200, 100 * 1_250_000, 50, 20), Model(100, 100 * 1_250_000, 50, 20)]


def test_section_3_3_the_model_with_the_higher_priority_finishes_as_if_alone_and_the_median_improves() -> (
    None
):
    alone = _times(_pair()[:1], with_priorities=False)[0]
    plain = _times(_pair(), with_priorities=False)
    with_priorities = _times(_pair(), with_priorities=True)
    assert with_priorities[0] <= alone * 1.05
    assert median(with_priorities) < median(plain)
    assert all(with_priorities), "somebody starved"


def test_section_3_3_of_four_models_none_starves_and_over_all_orders_the_median_improves() -> None:
    """Of one order alone it need not: where the longest transfers go first, the others' wait is long."""

    def models(lowest: int) -> list[Model]:
        return [Model(10 * ((nth - lowest) % 4), (40 + 20 * nth) * 1_250_000, 40, 10) for nth in range(4)]

    plain, medians = _times(models(0), with_priorities=False), list[float]()
    for lowest in range(4):
        highest = (lowest + 3) % 4
        alone = _times([models(lowest)[highest]], with_priorities=False)[0]
        ours = _times(models(lowest), with_priorities=True)
        assert ours[highest] <= alone * 1.05
        assert all(ours), "somebody starved"
        medians.append(median(ours))
    assert sum(medians) / 4 < median(plain)


def test_section_3_3_what_higher_classes_do_not_use_goes_to_the_next_all_the_way_down() -> None:
    """Work-conserving (docs/protocol.md 18.11): two slow senders leave the third what they do not use."""
    models = [
        Model(3, 10**9, 1, 1, uplink=RATE // 4),
        Model(2, 10**9, 1, 1, uplink=RATE // 4),
        Model(1, 10**10, 1, 1),
    ]
    link = Link(_admission(), models)
    link.run(2_000)
    until_known = 10 * 10 + 1  # ticks that a transfer is remembered, and taken to need everything
    assert len(link.idle) <= 2 * until_known, f"the link idled in {len(link.idle)} ticks: {link.idle}"
    assert models[2].left < 10**10 - 2 * RATE * 4 // 10
    per_tick = RATE // 4 * TICK_NS // S
    as_if_alone = 10**9 - 2_000 * per_tick
    assert models[0].left == as_if_alone
    assert models[1].left <= as_if_alone + until_known * per_tick, "more than until the first was measured"


def test_section_3_3_who_comes_with_a_higher_priority_has_the_link_at_once() -> None:
    admission = _admission()
    assert admission.step(Began("low", 1), Instant(0)) == []
    assert admission.step(Began("high", 2), Instant(1)) == [Limit("low", RATE // 100)]
    assert admission.view().preempted == 1
    assert admission.step(Ended("high"), Instant(2)) == [Limit("low", None)]


def _intervals(admission: Admission, uses: Sequence[int], first: int = 1) -> list[list[AdmissionAction]]:
    """``high`` moves so many bytes in each interval; what is told after each."""
    told = []
    for nth, nbytes in enumerate(uses, first):
        admission.step(Moved("high", nbytes), Instant(nth * 10 * MS - MS))
        told.append(admission.step(Woke(), Instant(nth * 10 * MS)))
    return told


def _two() -> Admission:
    admission = _admission()
    admission.step(Began("high", 2), Instant(0))
    assert admission.step(Began("low", 1), Instant(0)) == [Limit("low", RATE // 100)]
    return admission


FULL = RATE // 100
"""Of an interval, bytes."""


def test_section_3_3_a_lower_class_waits_beside_one_that_was_not_measured_for_long_enough() -> None:
    admission = _two()
    assert admission.deadline == 10 * MS
    told = _intervals(admission, [FULL // 10] * 10)
    assert told == [[]] * 9 + [[Limit("low", RATE - RATE // 10 - RATE // 100)]]


def test_section_3_3_who_becomes_faster_as_tcp_does_has_the_link_until_it_does_no_more() -> None:
    """Its use doubles from one interval to the next: what it was in the first ones says nothing."""
    uses = [FULL >> (6 - nth) for nth in range(6)] + [FULL * 95 // 100] * 20
    assert _intervals(_two(), uses) == [[]] * len(uses)


def test_section_3_3_a_slow_interval_of_the_higher_class_gives_nothing_away() -> None:
    """It is slow because the lower one is too fast, perhaps; and in so little time few reads make the use."""
    uses = [FULL * 95 // 100, FULL // 4] * 10
    assert _intervals(_two(), uses) == [[]] * len(uses)


def test_section_3_3_who_needs_less_than_before_is_believed_after_as_many_intervals() -> None:
    admission = _two()
    _intervals(admission, [FULL // 2] * 10)
    told = _intervals(admission, [FULL // 4] * 10, first=11)
    assert told == [[]] * 9 + [[Limit("low", RATE - RATE // 4 - RATE // 40)]]


def test_section_3_3_who_grows_into_its_headroom_has_the_link_again() -> None:
    admission = _two()
    _intervals(admission, [1_000_000] * 10)
    (told,) = _intervals(admission, [1_090_000], first=11)
    assert told == [Limit("low", RATE // 100)]
    assert _intervals(admission, [1_090_000] * 9, first=12) == [[]] * 9


@pytest.mark.parametrize(("used", "is_full"), [(1_056_000, True), (1_055_999, False)])
def test_section_3_3_who_uses_24_25ths_of_its_headroom_may_need_more(used: int, is_full: bool) -> None:
    admission = _two()
    _intervals(admission, [1_000_000] * 10)
    assert (_intervals(admission, [used], first=11) == [[Limit("low", RATE // 100)]]) is is_full


def test_rates_are_whole_bytes() -> None:
    """With a link and a use that nothing divides."""
    admission = Admission(AdmissionConfig(rate=1_234_567_899, headroom_permille=101))
    admission.step(Began("high", 2), Instant(0))
    told = admission.step(Began("low", 1), Instant(0)) + _intervals(admission, [1_234_567] * 10)[-1]
    assert [repr(one.rate) for one in told if isinstance(one, Limit)] == ["12345678", "1098642073"]


def test_transfers_of_one_class_have_no_limits_and_nothing_is_measured() -> None:
    admission = _admission()
    assert [admission.step(Began(name, 7), Instant(0)) for name in "abc"] == [[], [], []]
    assert admission.deadline is None
    assert admission.view().highest == 7


def test_beyond_transfers_max_a_transfer_is_refused_and_may_begin_when_one_has_ended() -> None:
    admission = Admission(AdmissionConfig(rate=RATE, transfers_max=1))
    admission.step(Began("a", 1), Instant(0))
    assert admission.step(Began("b", 9), Instant(0)) == [Refused("b")]
    admission.step(Ended("a"), Instant(1))
    assert admission.step(Began("b", 9), Instant(2)) == []
    assert admission.view().refused == 1


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([Moved("x", 1)], "has not begun"),
        ([Ended("x")], "has not begun"),
        ([Began("x", 256)], "priority"),
        ([Began("x", 1), Began("x", 1)], "has begun"),
        ([Began("x", 1), Moved("x", -1)], "moved -1"),
    ],
)
def test_misuse_is_told_and_changes_nothing(events: list[Began | Moved | Ended], wrong: str) -> None:
    admission = _admission()
    for event in events[:-1]:
        admission.step(event, Instant(0))
    before = admission.view()
    with pytest.raises(LocalMisuse, match=wrong):
        admission.step(events[-1], Instant(0))
    assert admission.view() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"interval_ns": 0},
        {"remembered_intervals": 0},
        {"floor_permille": 0},
        {"headroom_permille": -1},
    ],
)
def test_a_configuration_without_sense_is_refused(wrong: dict[str, int]) -> None:
    AdmissionConfig(rate=1, headroom_permille=0)
    with pytest.raises(LocalMisuse, match="admission: a "):
        AdmissionConfig(**{"rate": 1, **wrong})


@given(st.integers(0, 10**6), st.lists(st.none() | st.integers(0, 10**6), max_size=8))
def test_shares_are_max_min(capacity: int, wishes: list[int | None]) -> None:
    """What is beyond the wishes is slack; below them nobody has more than one who wants more."""
    shares = max_min(capacity, wishes)
    assert sum(shares) <= capacity
    assert not wishes or sum(shares) > capacity - len(wishes) * 2
    for share, wish in zip(shares, wishes, strict=True):
        if wish is None or share < wish:
            assert share >= max(shares) - len(wishes)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.integers(0, 5), st.integers(0, 3)),
            st.tuples(st.just("move"), st.integers(0, 5), st.integers(0, 20_000_000)),
            st.tuples(st.just("end"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("wait"), st.just(0), st.integers(1, 12)),
        ),
        max_size=40,
    )
)
def test_only_the_highest_class_goes_without_a_limit_and_the_others_share_what_is_left(
    script: list[tuple[str, int, int]],
) -> None:
    admission, now, live = _admission(), 0, dict[int, int]()
    limits: dict[Hashable, int | None] = {}
    for what, name, number in script:
        actions: list[AdmissionAction] = []
        if what == "begin" and name not in live:
            live[name], limits[name] = number, None
            actions = admission.step(Began(name, number), Instant(now))
        elif what == "move" and name in live:
            actions = admission.step(Moved(name, number), Instant(now))
        elif what == "end" and name in live:
            del live[name], limits[name]
            actions = admission.step(Ended(name), Instant(now))
        elif what == "wait":
            now += number * MS
            actions = admission.step(Woke(), Instant(now))
        for action in actions:
            assert isinstance(action, Limit)
            limits[action.transfer] = action.rate
        highest = max(live.values(), default=None)
        assert all((limits[one] is None) == (live[one] == highest) for one in live)
        for priority in set(live.values()) - {highest}:
            told = [limits[one] or 0 for one in live if live[one] == priority]
            assert min(told) > 0
            assert sum(told) <= RATE + len(told)
