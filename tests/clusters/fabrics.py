"""Fabrics for tests: a spine over two leaves, and what its rings must sum to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inaproto.daemon.settings.fabric_file import Fabric, fabric_of
from inaproto.wire.messages.trees import FabricTree
from tests.daemon.test_allreduce_end_to_end import Array, reference

SEATS = ("leaf0", "leaf0", "leaf1", "leaf1")
NESTED = ((0, 1), (2, 3))
"""What the tree of a ring adds whose ranks are at ``SEATS``."""
Nested = Sequence[Any]
"""Ranks, and sequences of such."""


def spine_and_leaves(
    directory: Path, *, trunks: dict[str, Path] | None = None, steers: Sequence[str] = ()
) -> Fabric:
    """The root in ``directory`` itself; ``trunks``: where leaves dial; ``steers``: those that do not add."""
    tables: list[dict[str, Any]] = [{"name": "spine", "dir": str(directory)}]
    for leaf in ("leaf0", "leaf1"):
        table: dict[str, Any] = {"name": leaf, "dir": str(directory / leaf), "above": "spine"}
        table["aggregates"] = leaf not in steers
        if trunks and leaf in trunks:
            table["trunk"] = str(trunks[leaf])
        tables.append(table)
    return fabric_of({"switches": tables}, directory)


def two_spines(directory: Path) -> Fabric:
    """Over two leaves: the root in ``directory`` itself, and a further root, ``spine1``."""
    tables: list[dict[str, Any]] = [
        {"name": "spine", "dir": str(directory)},
        {"name": "spine1", "dir": str(directory / "spine1")},
    ]
    tables += [
        {"name": leaf, "dir": str(directory / leaf), "above": ["spine", "spine1"]}
        for leaf in ("leaf0", "leaf1")
    ]
    return fabric_of({"switches": tables}, directory)


def tree_of_root(root: str) -> FabricTree:
    """Over both leaves."""
    return FabricTree(root, (("leaf0", root), ("leaf1", root)))


def nested_reference(plan: Nested, arrays: Sequence[Array], op: str) -> Array:
    """By numpy alone: each list of the plan is summed as a switch does it, rounded once, left to right."""
    inputs = [arrays[one] if isinstance(one, int) else nested_reference(one, arrays, op) for one in plan]
    return reference(inputs, op)
