"""A world of trees in a few rows, for people."""

from __future__ import annotations

from inaproto.sim.trees.world import TreesResult


def trees_rows(result: TreesResult) -> dict[str, str]:
    config = result.config
    return {
        "switches": "; ".join(f"{slots} slots" for slots in config.slots),
        "trees": "; ".join(f"switches {', '.join(map(str, tree))}" for tree in config.trees),
        "jobs": "; ".join(f"on tree {' or '.join(map(str, job.trees))}" for job in config.jobs),
        "wants": str(len(config.wants)),
        "faults": ", ".join(str(fault.kind) for fault in config.faults) or "none",
        "moves": str(result.marks.get("a move ended: stable", 0)),
    }
