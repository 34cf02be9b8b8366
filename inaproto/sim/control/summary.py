"""A control world in a few rows, for people."""

from __future__ import annotations

from inaproto.sim.control.world import ControlResult


def control_rows(result: ControlResult) -> dict[str, str]:
    config, measures = result.config, result.measures
    return {
        "rule": config.rule,
        "hosts": str(config.hosts),
        "switches": "; ".join(f"{slots} slots" for slots in config.switches),
        "trees": "; ".join(
            f"switches {', '.join(map(str, tree))}, pool for {pool}"
            for tree, pool in zip(config.trees, config.pools, strict=True)
        ),
        "jobs": "; ".join(f"{len(job.hosts)} seats, {job.operations} all-reduces" for job in config.jobs),
        "plans": str(len(config.plan)),
        "faults": ", ".join(str(fault.kind) for fault in config.faults) or "none",
        "rounds": f"{measures.rounds} ({measures.committed} committed, {measures.aborted} aborted)",
        "operations": f"{measures.ina_operations} by the switches, {measures.chain_operations} by the chain, "
        f"{measures.rescued} rescued",
    }
