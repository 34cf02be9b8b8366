"""The table of planted faults, ``docs/planted-faults.md``: what each is, what catches it, and how soon.

``python -m tests.planted.table`` hunts for every fault anew, from seed 0 on, and writes the table. That takes
some ten minutes; ``--stale`` hunts for those alone whose world does not break the rule any more, ``--words``
writes the parts of worlds of words alone, whose seeds stand beside the faults.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.progress import track

from inaproto.errors import InvariantBroken
from tests.planted import overlay_faults, tree_faults
from tests.planted.catalogue import FAULTS
from tests.planted.hunt import Catch, hunt, run_world
from tests.planted.planting import PlantedFault

TABLE: Final = Path(__file__).resolve().parents[2] / "docs" / "planted-faults.md"
_COLUMNS: Final = ("Fault", "What the implementer did", "Against", "Caught by", "Seed", "Steps", "Events")
_TEXT: Final = """\
# Planted faults

What a careless implementer might do, planted one at a time into the running code by
`tests/planted/catalogue.py`, and what finds it: a rule that every simulated world is held to
(`inaproto/sim/frames/checkers`), or a named test. Seed, core steps and events say in which world the rule
was first broken, searching seeds from 0, and how far that world had come; `make check` plants them all again.

`python -m tests.planted.table` writes this table. With `--stale` a seed that still breaks the rule stays.
"""
_TREES: Final = """
## In trees that move

Slots, wishes and moves (`tests/planted/tree_faults.py`). The seed is that of a world of trees that breaks the
rule, and keeps it without the fault.

| Fault | What the implementer did | Against | Caught by | Seed |
|---|---|---|---|---|
"""
_OVERLAY: Final = """
## In trees of hosts

Push, pull and clock (`tests/planted/overlay_faults.py`). The seed is that of an overlay world that breaks the
rule, and keeps it without the fault.

| Fault | What the implementer did | Against | Caught by | Seed |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """What the table says of a fault."""

    rule: str
    seed: int | None
    """None where a test catches it."""


def render(catches: Mapping[str, Catch | None]) -> str:
    """The whole file. What a test catches has no entry of its own in ``catches``."""
    lines = [_TEXT, "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for name, fault in FAULTS.items():
        catch = catches.get(name)
        if fault.test:
            found = f"`{fault.test}`", "", "", ""
        elif catch is None:
            found = "**nothing**", "", "", ""
        else:
            found = catch.rule, str(catch.seed), f"{catch.steps:,}", f"{catch.events:,}"
        lines.append("| " + " | ".join((f"`{name}`", fault.text, fault.paper, *found)) + " |")
    return "\n".join(lines) + "\n" + trees_section() + overlay_section()


def trees_section() -> str:
    return _TREES + _rows(tree_faults.FINDS, tree_faults.FAULTS)


def overlay_section() -> str:
    return _OVERLAY + _rows(overlay_faults.FINDS, overlay_faults.FAULTS)


def _rows(finds: Mapping[str, tuple[int, str]], faults: Mapping[str, PlantedFault]) -> str:
    lines = []
    for name, (seed, rule) in finds.items():
        fault = faults[name]
        lines.append(f"| `{name}` | {fault.text} | {fault.paper} | {rule} | {seed:,} |")
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, Row]:
    """Rule and seed of each fault in the table."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) == len(_COLUMNS) and line.startswith("| `"):
            rows[cells[0]] = Row(cells[3], int(cells[4]) if cells[4] else None)
    return rows


def search(fault: PlantedFault) -> Catch | None:
    """Hunt for it. Raises ``InvariantBroken`` if the same world fails without the fault."""
    if fault.test:
        return None
    catch = hunt(fault, range(fault.seeds_max))
    without = run_world(fault, catch.seed).violation if catch is not None else None
    if catch is not None and without is not None:
        raise InvariantBroken(f"world {catch.seed} as {fault.name} wants it fails without it: {without}")
    return catch


def again(fault: PlantedFault, row: Row | None) -> Catch | None:
    """By the world that the table says, or else hunted for anew."""
    if row is not None and row.seed is not None:
        catch = hunt(fault, (row.seed,))
        if catch is not None and catch.rule == row.rule and run_world(fault, row.seed).violation is None:
            return catch
    return search(fault)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--words", action="store_true", help="write the parts of worlds of words alone")
    options.add_argument(
        "--stale", action="store_true", help="hunt for what its world does not show any more"
    )
    given = options.parse_args()
    if given.words:
        frames = TABLE.read_text().split("\n## ")[0].rstrip()
        TABLE.write_text(frames + "\n" + trees_section() + overlay_section())
        return
    rows = read(TABLE.read_text()) if given.stale else {}
    catches = {fault.name: again(fault, rows.get(fault.name)) for fault in track(FAULTS.values(), "hunting")}
    TABLE.write_text(render(catches))


if __name__ == "__main__":
    main()
