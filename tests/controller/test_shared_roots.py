"""Which jobs share a root: groups that lose least, kept unless another is worth its moves (MINA, III-D)."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto_controller.cluster.model import CLUSTER, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.trees.shared_roots import (
    UNKNOWN,
    Gain,
    Option,
    RootConfig,
    SharedJob,
    _Draft,
    assign_roots,
)
from inaproto_controller.planning.trees.sticky import TURNS

SPINES = tuple(Option(f"spine{number}", ("leaf0", "leaf1", f"spine{number}")) for number in range(2))
ROOM = {"leaf0": 8, "leaf1": 8, "spine0": 4, "spine1": 4}
BUSY, IDLE = Gain(1.0, 1.0), Gain(0.2, 0.1)


def job(name: str, current: int | None = None, gain: Gain = UNKNOWN, pinned: str = "") -> SharedJob:
    return SharedJob(name, SPINES, current, gain, pinned=pinned)


def loss(jobs: list[SharedJob], trees: dict[str, int | None]) -> float:
    return sum(
        TURNS * (one.gain.rate * other.gain.duty + other.gain.rate * one.gain.duty)
        for one, other in itertools.combinations(jobs, 2)
        if trees[one.name] is not None and trees[one.name] == trees[other.name]
    )


def test_jobs_of_which_nothing_is_known_are_spread_evenly() -> None:
    placed = assign_roots([job(name) for name in "abcd"], ROOM)
    assert sorted(placed.values(), key=str) == [0, 0, 1, 1]


def test_a_job_alone_keeps_the_nearest_root() -> None:
    assert assign_roots([job("a")], ROOM) == {"a": 0}
    assert assign_roots([job("a", 1)], ROOM) == {"a": 1}


def test_two_that_meet_at_one_root_part_and_the_second_moves() -> None:
    assert assign_roots([job("a", 0), job("b", 0)], ROOM) == {"a": 1, "b": 0}


def test_of_two_equals_the_one_moves_that_has_just_begun() -> None:
    begins = SharedJob("b", SPINES, 0, is_settled=False)
    assert assign_roots([job("a", 0), begins], ROOM) == {"a": 0, "b": 1}


def test_nobody_moves_where_nothing_is_gained() -> None:
    jobs = [job("a", 0), job("b", 0), job("c", 1)]
    assert assign_roots(jobs, ROOM) == {"a": 0, "b": 0, "c": 1}


def test_a_gain_that_is_not_worth_the_downtime_moves_nobody() -> None:
    jobs = [job("a", 0, IDLE), job("b", 0, IDLE)]
    dear = RootConfig(downtime=0.559, horizon=0.5)
    assert assign_roots(jobs, ROOM, dear) == {"a": 0, "b": 0}
    assert sorted(assign_roots(jobs, ROOM).values(), key=str) == [0, 1]


def test_a_fourth_job_moves_another_one_when_that_grouping_loses_less() -> None:
    """Two that are in nobody's way share a root; beside a busy one, the fourth makes one of them move."""
    jobs = [job("a", 0, BUSY), job("b", 1, IDLE), job("c", 1, IDLE)]
    assert assign_roots(jobs, ROOM) == {"a": 0, "b": 1, "c": 1}
    more = [*jobs, job("d")]
    placed = assign_roots(more, ROOM)
    assert placed["a"] != placed["d"]
    assert placed["b"] != placed["c"]
    assert sum(placed[one.name] != one.current for one in jobs) == 1
    ways = (dict(zip("abcd", way, strict=True)) for way in itertools.product((0, 1), repeat=4))
    assert loss(more, placed) == pytest.approx(min(loss(more, dict(way)) for way in ways))


def test_room_is_kept_to_and_made() -> None:
    room = {**ROOM, "spine0": 1, "spine1": 1}
    assert sorted(assign_roots([job(name) for name in "abc"], room).values(), key=str) == [0, 1, None]
    only = SharedJob("b", SPINES[:1])
    assert assign_roots([job("a", 0), only], room) == {"a": 1, "b": 0}


def test_two_of_full_roots_exchange_them() -> None:
    room = {**ROOM, "spine0": 2, "spine1": 2}
    jobs = [job("a", 0, BUSY), job("b", 0, BUSY), job("c", 1, IDLE), job("d", 1, IDLE)]
    placed = assign_roots(jobs, room)
    assert placed["a"] != placed["b"]
    assert placed["c"] != placed["d"]
    assert sum(placed[one.name] != one.current for one in jobs) == 2


def test_a_person_s_wish_counts_and_a_barred_tree_is_not_had() -> None:
    assert assign_roots([job("a", 0, pinned="spine1")], ROOM) == {"a": 1}
    barred = SharedJob("a", SPINES, 0, barred=frozenset({0}))
    assert assign_roots([barred], ROOM) == {"a": 1}
    assert assign_roots([SharedJob("a", SPINES, 0, barred=frozenset({0, 1}))], ROOM) == {"a": None}
    full = {**ROOM, "spine1": 0}
    assert assign_roots([job("a", 0, pinned="spine1")], full) == {"a": 0}, "it keeps what it has"


@pytest.mark.parametrize("roots", [2, 16])
@pytest.mark.parametrize("room", [4096, 4])
def test_what_jobs_lose_is_computed_in_proportion_to_their_number(
    monkeypatch: pytest.MonkeyPatch, roots: int, room: int
) -> None:
    """Not once for each two of them: the controller does nothing else meanwhile."""
    computed: list[int] = []
    loss = _Draft.loss

    def counted(draft: _Draft, name: str, index: int) -> float:
        computed[-1] += 1
        return loss(draft, name, index)

    monkeypatch.setattr(_Draft, "loss", counted)
    options = tuple(Option(f"s{root}", ("leaf", f"s{root}")) for root in range(roots))
    slots = {"leaf": 4096} | {one.root: room for one in options}
    for jobs in (64, 128, 256):
        computed.append(0)
        draws = random.Random(7)
        some = [
            SharedJob(f"j{number}", options, draws.choice([None, 0, 1]), Gain(draws.random(), draws.random()))
            for number in range(jobs)
        ]
        assign_roots(some, slots)
        assert computed[-1] < 10 * jobs * (roots + 2)


GAINS = st.builds(Gain, st.floats(0, 3), st.floats(0, 1))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([None, 0, 1]), GAINS), max_size=6), st.integers(0, 3), st.randoms())
def test_plans_keep_to_the_room_whatever_the_order_and_the_next_one_moves_nobody(
    drawn: list[tuple[int | None, Gain]], room: int, random: object
) -> None:
    slots = {"leaf0": 4, "leaf1": 4, "spine0": room, "spine1": 2}
    jobs = [job(f"j{number}", current, gain) for number, (current, gain) in enumerate(drawn)]
    placed = assign_roots(jobs, slots)
    for switch, count in slots.items():
        through = [tree for tree in placed.values() if tree is not None and switch in SPINES[tree].switches]
        assert len(through) <= count
    assert assign_roots(jobs[::-1], slots) == placed
    again = [job(one.name, placed[one.name], one.gain) for one in jobs]
    assert assign_roots(again, slots) == placed


def test_a_measured_model_gains_what_its_step_says() -> None:
    times = StepTimes(measured("opt-125m-4"), CLUSTER, hosts=4)
    gain = Gain.of(times)
    assert gain.rate == pytest.approx((times.step_plain - times.step_ina) / times.step_ina)
    assert 0 < gain.duty <= 1
