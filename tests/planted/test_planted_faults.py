"""Every planted fault is caught: by a checker of the simulated world, or by a test that is named for it."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.planted import catalogue
from tests.planted.catalogue import FAULTS, install
from tests.planted.hunt import hunt, run_test, run_world
from tests.planted.planting import Change, PlantedFault
from tests.planted.table import TABLE, read

ROWS = read(TABLE.read_text())
AGAIN = "write the table anew: python -m tests.planted.table --stale"
IN_WORLDS = [name for name, fault in FAULTS.items() if not fault.test]
BY_TESTS = [name for name, fault in FAULTS.items() if fault.test]


def test_the_table_names_every_fault() -> None:
    assert list(ROWS) == list(FAULTS), AGAIN
    assert len(FAULTS) >= 25
    assert all(ROWS[name].seed is not None for name in IN_WORLDS), AGAIN
    assert all(ROWS[name].rule == FAULTS[name].test for name in BY_TESTS), AGAIN


@pytest.mark.parametrize("name", IN_WORLDS)
def test_a_world_catches(name: str) -> None:
    """By the rule that the table says; in the world that it says, or else in another one."""
    fault, row = FAULTS[name], ROWS[name]
    assert row.seed is not None, AGAIN
    seeds = chain((row.seed,), range(fault.seeds_max))
    catch = next(
        (catch for seed in seeds if (catch := hunt(fault, (seed,))) and catch.rule == row.rule), None
    )
    assert catch is not None, f"{fault.seeds_max} worlds with {name} never break {row.rule!r}; {AGAIN}"
    assert run_world(fault, catch.seed).violation is None, f"world {catch.seed} fails without {name} too"


@pytest.mark.usefixtures("use_kernels")  # it has those from before chosen again
@pytest.mark.parametrize("name", BY_TESTS)
def test_a_test_catches(name: str) -> None:
    fault = FAULTS[name]
    run_test(fault)
    with fault(), pytest.raises(Exception):  # noqa: B017  however it fails
        run_test(fault)
    run_test(fault)


def test_a_fault_is_planted_as_long_as_its_context_lasts() -> None:
    changes = [change for fault in FAULTS.values() for change in fault.changes]
    before = [change.target().__code__ for change in changes]
    for name, fault in FAULTS.items():
        with install(name):
            assert all(
                change.target().__code__ is not code
                for change, code in zip(changes, before, strict=True)
                if change in fault.changes
            )
        assert getattr(catalogue, name) is fault
    assert [change.target().__code__ for change in changes] == before


def test_a_fault_that_no_longer_fits_the_code_says_so() -> None:
    fault = PlantedFault("stale", "", "", (Change(hunt, "what is not there", "pass"),))
    with pytest.raises(AssertionError, match=r"fault stale: tests\.planted\.hunt\.hunt has 0 times"), fault():
        pass
