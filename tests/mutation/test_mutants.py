"""Mutants: what is mutated, identities that outlive edits, and putting one in the place of the original."""

from __future__ import annotations

import types
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.mutation.mutants import CannotApply, Mutant, apply, mutants_of, sample_of

SOURCE = '''\
"""A module."""

LIMIT = 3


def clamp(value: int, low: int = 0) -> int:
    # never below
    if value < low:
        return low
    return value


class Box:
    """Two values."""

    def __init__(self) -> None:
        self.a, self.b = 1, 1

    @property
    def total(self) -> int:
        """Of both."""
        return (
            self.a
            + self.b
        )

    @classmethod
    def make(cls) -> "Box":
        box = cls()
        box.a = 2
        box.b = 2
        return box
'''


def difference() -> Mutant:
    """``Box.total`` subtracts."""
    return next(m for m in mutants_of(SOURCE) if m.change.added == ("self.a - self.b",))


def named(mutants: list[Mutant]) -> dict[str, Mutant]:
    return {str(mutant.change): mutant for mutant in mutants}


@pytest.fixture
def module() -> types.ModuleType:
    made = types.ModuleType("mutated_sample")
    exec(compile(SOURCE, "sample.py", "exec"), made.__dict__)
    return made


def live(*functions: Any) -> dict[tuple[str, int], list[FunctionType]]:
    return {(f.__code__.co_qualname, f.__code__.co_firstlineno): [f] for f in functions}


def test_functions_methods_and_properties_are_mutated_and_nothing_else() -> None:
    mutants = mutants_of(SOURCE)
    assert {mutant.change.function for mutant in mutants} == {
        "clamp",
        "Box.__init__",
        "Box.total",
        "Box.make",
    }
    assert "clamp\n    - if value < low:\n    + if value <= low:" in named(mutants)
    assert difference().change.function == "Box.total"


def test_identities_outlive_edits_elsewhere() -> None:
    edited = SOURCE.replace("LIMIT = 3\n", "LIMIT = 3\nMORE = 4\n\n\ndef first() -> int:\n    return 5\n")
    before, after = named(mutants_of(SOURCE)), named(mutants_of(edited))
    assert before.keys() < after.keys()
    assert all("first" in name for name in after.keys() - before.keys())


def test_equal_changes_in_one_function_are_numbered() -> None:
    source = "def f(a: int) -> int:\n    a += 1\n    a += 1\n    return a\n"
    numbers = [mutant.change.nth for mutant in mutants_of(source) if "a -= 1" in str(mutant.change)]
    assert numbers == [0, 1]


def test_lines_that_tell_a_mutant_from_the_original() -> None:
    mutants = named(mutants_of(SOURCE))
    head = mutants["clamp\n    - if value < low:\n    + if value <= low:"]
    assert (list(head.lines), head.body) == ([8], range(6, 11))
    spread = difference()
    assert list(spread.lines) == [22, 23, 24, 25], "all of the statement"
    default = mutants[
        "clamp\n    - def clamp(value: int, low: int = 0) -> int:\n"
        "    + def clamp(value: int, low: int = 1) -> int:"
    ]
    assert default.lines == default.body


def test_a_sample_stays_when_other_functions_change() -> None:
    edited = SOURCE.replace("        self.a, self.b = 1, 1", "        self.a = self.b = 1")
    before, after = (
        {mutant.change for mutant in sample_of(mutants_of(source), size)}
        for source, size in ((SOURCE, 5), (edited, len(mutants_of(edited))))
    )
    assert len(before) == 5
    assert all(change.function == "Box.__init__" for change in before - after)


def test_what_mypy_or_an_assertion_holds_is_not_mutated() -> None:
    source = (
        "def f(a: int) -> bool:\n    found = False\n    match a:\n        case 1:\n            found = True\n"
        "        case _:\n            assert_never(a)\n    g(zip(a, found, strict=True))\n    return found\n"
    )
    added = {line for mutant in mutants_of(source) for line in mutant.change.added}
    assert {
        "found = True",
        "found = None",
        "g(zip(a, None, strict=True))",
        "g(zip(found, strict=True))",
    } <= added
    assert not any("assert_never" in line or line.startswith("g(zip(a, found") for line in added)
    assert [m.change.removed for m in mutants_of(source) if m.change.added == ("found = None",)] == [
        ("found = True",)
    ]


def test_a_mutant_takes_the_place_of_a_function(module: types.ModuleType) -> None:
    mutants = mutants_of(SOURCE)
    keep = module.clamp
    assert (keep(0), keep(-1)) == (0, 0)
    one = "def clamp(value: int, low: int = 1) -> int:"
    [mutant] = [mutant for mutant in mutants if mutant.change.added == (one,)]
    apply(mutant, "sample.py", live(module.clamp))
    assert keep(0) == 1, "whoever holds the function has the mutant, its default too"


def test_a_mutant_takes_the_place_of_a_property(module: types.ModuleType) -> None:
    box = module.Box.make()
    assert box.total == 4
    mutant = difference()
    apply(mutant, "sample.py", live(module.Box.__dict__["total"].fget))
    assert box.total == 0


def test_a_mutant_takes_the_place_of_a_class_method(module: types.ModuleType) -> None:
    mutant = named(mutants_of(SOURCE))["Box.make\n    - box.a = 2\n    + box.a = 3"]
    apply(mutant, "sample.py", live(module.Box.make.__func__))
    assert module.Box.make().total == 5


def test_a_function_that_is_not_live_is_told(module: types.ModuleType) -> None:
    with pytest.raises(CannotApply, match=r"no live function Box\.total"):
        apply(
            difference(),
            "sample.py",
            live(module.clamp),
        )


def test_every_mutant_of_a_real_module_compiles() -> None:
    path = Path(__file__).resolve().parents[2] / "inaproto" / "wire" / "crc.py"
    mutants = mutants_of(path.read_text())
    assert len(mutants) > 40
    assert len({mutant.change for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        compile(mutant.source, str(path), "exec")
    assert any(mutant.change.function == "byte_table" for mutant in mutants), "decorated by lru_cache"
