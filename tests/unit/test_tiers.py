"""The tiers of tests: the table of slow ones names tests that there are, and seeds rotate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rotating import ROTATING, left_out
from tests.seeds import ALL, ROTATION, ROTATIONS, SEEDS, how_to_repeat, seeds
from tests.slow import SLOW, functions_of, is_slow

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("entry", SLOW)
def test_what_is_listed_as_slow_is_there(entry: str) -> None:
    path = TESTS / entry.partition("::")[0]
    assert path.is_file(), f"tests/slow.py: {entry}: no such file"
    found = set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    missing = [name for name in functions_of(entry) if name not in found]
    assert not missing, f"tests/slow.py: {entry}: not in that file: {missing}"


@pytest.mark.parametrize("entry", sorted(ROTATING))
def test_what_rotates_is_there(entry: str) -> None:
    path, _, test = entry.partition("::")
    assert re.search(rf"^(?:async )?def {test}\b", (TESTS / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 24])
def test_all_cases_of_what_rotates_run_in_four_rotations(count: int) -> None:
    name = f"tests/{min(ROTATING)}"
    cases = [f"{name}[{number}]" for number in range(count)]
    others = ["tests/unit/test_tiers.py::test_x[1]", "tests/unit/test_tiers.py::test_x[2]"]
    runs = [{*cases, *others} - left_out([*others, *cases], str(rotation)) for rotation in range(ROTATIONS)]
    assert set().union(*runs) == {*cases, *others}
    for its in runs:
        assert its >= {*others}
        assert 1 <= len(its) - len(others) <= -(-count // min(ROTATIONS, count))
    assert left_out(cases, ALL) == set()


def test_of_a_slow_file_or_test_some_stay_fast() -> None:
    assert is_slow("tests/daemon/test_bench_allreduce.py::test_parallel_rings_share_the_traffic")
    assert not is_slow("tests/daemon/test_bench_allreduce.py::test_every_type_is_right_over_a_bad_wire")
    assert is_slow("tests/daemon/test_memory_fabric.py::test_three_levels[spine]")
    assert not is_slow("tests/daemon/test_memory_fabric.py::test_three_levels[]")
    assert is_slow("tests/daemon/test_demo_run.py::test_an_interrupted_demo_leaves_no_process[15]")
    assert not is_slow("tests/daemon/test_demo_run.py::test_an_interrupted_demo_leaves_no_process[2]")
    assert not is_slow("tests/unit/test_tiers.py::test_of_a_slow_file_or_test_some_stay_fast")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 24, 200])
def test_rotations_are_all_seeds_together(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.delenv(SEEDS, raising=False)
    taken = set()
    for rotation in range(ROTATIONS):
        monkeypatch.setenv(ROTATION, str(rotation))
        chosen = seeds(count)
        assert 1 <= len(chosen) <= -(-count // ROTATIONS)
        taken |= {*chosen}
    assert taken == {*range(count)}
    monkeypatch.setenv(ROTATION, ALL)
    assert seeds(count) == range(count)
    monkeypatch.setenv(SEEDS, "17:18")
    assert seeds(count) == range(17, 18)


def test_a_failure_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROTATION, "3")
    assert how_to_repeat("t.py::test_x[17]", 17) == "INAPROTO_SEEDS=17:18 python -m pytest 't.py::test_x'"
    assert how_to_repeat("t.py::test_y", None) == "INAPROTO_ROTATION=3 python -m pytest 't.py::test_y'"
