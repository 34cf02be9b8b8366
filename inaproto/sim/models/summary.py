"""An overlay world in a few rows, for people."""

from __future__ import annotations

from inaproto.sim.models.world import OverlayResult


def overlay_rows(result: OverlayResult) -> dict[str, str]:
    config = result.config
    return {
        "hosts": f"{len(config.hosts)}, {len(config.workers)} of them with a worker",
        "shards": "; ".join(
            f"{setup.dtype}{f' / 2**{setup.fraction_bits}' if setup.fraction_bits >= 0 else ''}, "
            f"s = {setup.staleness}, tree {config.tree(number).height()} high"
            for number, setup in enumerate(config.shards)
        ),
        "updates": ", ".join(str(worker.clocks) for worker in config.workers),
        "faults": ", ".join(str(fault.kind) for fault in config.faults) or "none",
    }
