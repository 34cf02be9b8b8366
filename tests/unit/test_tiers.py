"""The tiers of tests: the table of slow ones names tests that there are, and seeds rotate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dear import DEAR, listed, takes_long
from tests.rotating import is_tier, left_out
from tests.seeds import ALL, ROTATION, ROTATIONS, SEEDS, TURNS, how_to_repeat, seeds
from tests.slow import SLOW, functions_of, is_slow

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("entry", SLOW)
def test_what_is_listed_as_slow_is_there(entry: str) -> None:
    path = TESTS / entry.partition("::")[0]
    assert path.is_file(), f"tests/slow.py: {entry}: no such file"
    found = set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    missing = [name for name in functions_of(entry) if name not in found]
    assert not missing, f"tests/slow.py: {entry}: not in that file: {missing}"


def test_who_names_a_file_gets_all_of_it(pytestconfig: pytest.Config) -> None:
    addopts = pytestconfig.getini("addopts")
    always = "not hil and not figures and not rtl"
    assert not is_tier(always, addopts)
    assert is_tier(f"not slow and {always}", addopts)
    assert is_tier("rtl or not rtl", addopts)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40])
def test_each_case_has_its_turn_in_eight_rotations(count: int) -> None:
    cases = [f"tests/unit/test_a.py::test_x[{number}]" for number in range(count)]
    runs = [{*cases} - left_out(cases, str(rotation)) for rotation in range(TURNS)]
    assert sorted(case for its in runs for case in its) == sorted(cases)
    assert all(len(its) <= -(-count // TURNS) for its in runs)
    assert left_out(cases, ALL) == set()


def test_the_list_of_dear_tests_is_made_of_a_report() -> None:
    report = (
        "    0.90 fast tests/unit/test_b.py::test_x[1]\n"
        "    0.50 slow tests/unit/test_b.py::test_slow\n"
        "    0.30 fast tests/unit/test_a.py::TestIt::test_z\n"
        "    0.05 fast tests/unit/test_a.py::test_cheap\n"
        "    0.01 fast tests/unit/test_b.py::test_x[2]\n"
    )
    assert listed(report) == "unit/test_a.py\n TestIt::test_z\nunit/test_b.py\n test_x\n"
    again = "    0.02 fast tests/unit/test_b.py::test_x[1]\n"
    assert listed(report, again) == "unit/test_a.py\n TestIt::test_z\n"


def test_a_test_of_a_second_is_slow_until_it_is_measured_again() -> None:
    report = "    1.90 fast tests/unit/test_a.py::test_x[1]\n    0.10 fast tests/unit/test_a.py::test_x[2]\n"
    assert listed(report) == "unit/test_a.py\n test_x slow\n"
    slow = ["unit/test_b.py::test_y", "unit/test_c.py::test_z"]
    again = "    0.50 slow tests/unit/test_c.py::test_z\n"
    assert listed(report, again, slow=slow) == (
        "unit/test_a.py\n test_x slow\nunit/test_b.py\n test_y slow\nunit/test_c.py\n test_z\n"
    )


def test_what_was_measured_to_be_slow_is_unless_somebody_says_what_stays() -> None:
    measured = [test for test in DEAR if takes_long(test)]
    assert measured
    for test in measured:
        path = test.partition("::")[0]
        assert is_slow(f"tests/{test}") or path in SLOW or test in SLOW


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
