"""What ``inaproto model netreduce`` prints: JSON first, the tables from the same exact values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table

from inaproto_controller.cost_model.netreduce import (
    ALGORITHMS,
    Cluster,
    Number,
    Sizes,
    tencent_stage_1_as_printed,
)
from inaproto_controller.cost_model.netreduce_simulation import (
    ELEMENT_BYTES,
    SEGMENT_BYTES,
    Simulation,
    Timed,
)
from inaproto_controller.cost_model.netreduce_sweeps import (
    GB,
    INTER,
    MB,
    MS,
    PER_MACHINE,
    SIZE,
    US,
    Sweep,
    cluster_at,
    contradictions,
    netreduce_crossovers,
    sweeps,
    tencent_crossovers,
    thresholds,
)
from inaproto_controller.cost_model.netreduce_training import compared, gains

VERSION: Final = 1


def document(simulation: Simulation | None = None) -> dict[str, Any]:
    """The whole report for ``json.dump``. Ratios and crossovers are also given as exact fractions.

    What was not simulated is ``null``.
    """
    return {
        "version": VERSION,
        "model": "netreduce",
        "source": "NetReduce, section 3.4 and appendix A",
        "size_bytes": int(SIZE),
        "gpus_per_machine": PER_MACHINE,
        "inter_gb_per_s": float(INTER / GB),
        "algorithms": [
            {"name": algorithm.name, "title": algorithm.title, "source": algorithm.source}
            for algorithm in ALGORITHMS
        ],
        "sweeps": [_sweep(sweep, simulation) for sweep in sweeps()],
        "stages": _stages(cluster_at()),
        "thresholds": [
            {
                "gpus": gpus,
                "exact": _exact(exact),
                "exact_intra_gb_per_s": float(exact * INTER / GB),
                "equation_6": _exact(relaxed),
            }
            for gpus, exact, relaxed in thresholds()
        ],
        "crossovers": [
            *(_crossover("PN", "FR", cluster, sizes) for cluster, sizes in netreduce_crossovers()),
            *(_crossover("TA", "FR", cluster, sizes) for cluster, sizes in tencent_crossovers()),
        ],
        "training": _training(),
        "contradictions": [
            {**asdict(one), "figures": {name: _exact(value) for name, value in one.figures.items()}}
            for one in contradictions()
        ],
        "simulation": None if simulation is None else _headline(simulation),
    }


def _training() -> list[dict[str, Any]]:
    """Tables 7 and 9 of the paper, beside the equations."""
    rows = compared()
    against = gains(rows)
    return [
        {
            "table": row.table,
            "model": row.model.name,
            "size_mb": row.model.size_mb,
            "compute_ms": float(row.model.compute),
            "algorithm": row.algorithm,
            "communication_ms": float(row.communication),
            "printed_communication_ms": _or_none(row.printed_communication),
            "iteration_ms": float(row.iteration),
            "printed_iteration_ms": float(row.printed_iteration),
            "to_netreduce": _or_none(against.get((*row.gain_key, row.algorithm), (None, None))[0]),
            "printed_to_netreduce": _or_none(against.get((*row.gain_key, row.algorithm), (None, None))[1]),
        }
        for row in rows
    ]


def _or_none(value: Number | None) -> float | None:
    return None if value is None else float(value)


def _headline(simulation: Simulation) -> dict[str, Any]:
    return {
        "element_bytes": ELEMENT_BYTES,
        "segment_bytes": SEGMENT_BYTES,
        "ring_against_ina": [
            {
                "gpus": one.gpus,
                "ring": _timed(one.ring),
                "ina": _timed(one.netreduce),
                "speedup": one.speedup,
            }
            for one in simulation.headline
        ],
    }


def _timed(one: Timed) -> dict[str, float]:
    return {
        "model_ms": 1e3 * one.model,
        "staged_ms": 1e3 * one.staged,
        "staged_to_model": one.staged_to_model,
        "overlapped_ms": 1e3 * one.overlapped,
        "overlapped_to_model": one.overlapped_to_model,
    }


def _sweep(sweep: Sweep, simulation: Simulation | None) -> dict[str, Any]:
    points = {} if simulation is None else simulation.points
    return {
        "figure": f"7{sweep.panel}",
        "varied": sweep.varied,
        "unit": sweep.unit,
        "fixed": sweep.fixed,
        "rows": [
            {
                "value": float(row.value),
                **_cluster(row.cluster),
                "ms": _milliseconds(row.seconds),
                "fastest": row.fastest,
                "simulated": {name: _timed(one) for name, one in points[row.cluster].items()}
                if row.cluster in points
                else None,
            }
            for row in sweep.rows
        ],
    }


def _stages(cluster: Cluster) -> dict[str, Any]:
    """The addends of every algorithm, and TA's first one as the paper prints it."""
    found: dict[str, Any] = {"cluster": _cluster(cluster)}
    for algorithm in ALGORITHMS:
        found[algorithm.name] = [
            {"stage": stage.label, "latency_us": float(stage.latency / US), "ms": float(stage.time / MS)}
            for stage in algorithm.stages(cluster, SIZE)
        ]
    printed = tencent_stage_1_as_printed(cluster, SIZE)
    found["TA_stage_1_as_printed"] = {
        "stage": printed.label,
        "latency_us": float(printed.latency / US),
        "ms": float(printed.time / MS),
    }
    return found


def _crossover(faster: str, slower: str, cluster: Cluster, sizes: Sizes) -> dict[str, Any]:
    return {
        "faster": faster,
        "slower": slower,
        **_cluster(cluster),
        "when": sizes.when,
        "size_mb": None if sizes.size is None else _exact(sizes.size / MB),
    }


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return {
        "gpus": cluster.gpus,
        "intra_gb_per_s": float(cluster.intra / GB),
        "alpha_us": float(cluster.alpha / US),
    }


def _milliseconds(seconds: Mapping[str, Number]) -> dict[str, float]:
    return {name: float(value / MS) for name, value in seconds.items()}


def _exact(value: Number) -> dict[str, Any]:
    return {"value": float(value), "exact": str(Fraction(value))}


def show(console: Console, simulation: Simulation | None = None) -> None:
    """The tables."""
    for sweep in sweeps():
        _show(console, f"Figure 7{sweep.panel}: ms for 100 MB, {sweep.fixed}", _sweep_table(sweep))
        if simulation is not None and any(row.cluster in simulation.points for row in sweep.rows):
            table = _simulated_table(sweep, simulation, "staged")
            _show(console, f"Simulated 7{sweep.panel}, stage by stage; against the model", table)
            table = _simulated_table(sweep, simulation, "overlapped")
            _show(console, f"Simulated 7{sweep.panel}, stages overlapping; against the model", table)
    if simulation is not None and simulation.headline:
        title = "A ring and a sum in the network, one GPU per machine, 12.5 GB/s: ms for 100 MB"
        _show(console, title, _headline_table(simulation))
    _show(console, "Stages at P = 32, B_intra = 50 GB/s, alpha = 1 us", _stage_table(cluster_at()))
    _show(console, "PN is faster than FR at every size from this B_intra/B_inter on", _threshold_table())
    _show(console, "The sizes at which one is faster than the other", _crossover_table())
    title = "Trained models of Tables 7 and 9 (batch 32): ms by the equations, and as printed"
    _show(console, title, _training_table())
    console.print("Where the paper's text does not follow from its equations", style="bold")
    for one in contradictions():
        console.print(f"- {one.where}: “{one.printed}”.", highlight=False, markup=False, soft_wrap=True)
        console.print(f"  Holds: {one.holds}.", highlight=False, markup=False, soft_wrap=True)


def _sweep_table(sweep: Sweep) -> Table:
    table = _table()
    for name in (f"{sweep.varied} {sweep.unit}", *(algorithm.name for algorithm in ALGORITHMS)):
        table.add_column(name, justify="right")
    table.add_column("fastest")
    for row in sweep.rows:
        times = (f"{float(value / MS):.4f}" for value in row.seconds.values())
        table.add_row(f"{float(row.value):g}", *times, row.fastest)
    return table


def _simulated_table(sweep: Sweep, simulation: Simulation, which: Literal["staged", "overlapped"]) -> Table:
    table = _table()
    for name in (f"{sweep.varied} {sweep.unit}", *(algorithm.name for algorithm in ALGORITHMS)):
        table.add_column(name, justify="right")
    for row in sweep.rows:
        if row.cluster in simulation.points:
            found = simulation.points[row.cluster].values()
            table.add_row(f"{float(row.value):g}", *(_against_model(one, which) for one in found))
    return table


def _headline_table(simulation: Simulation) -> Table:
    table = _table()
    for name in ("P", "ring", "simulated", "network", "simulated", "ring/network"):
        table.add_column(name, justify="right")
    for one in simulation.headline:
        table.add_row(
            str(one.gpus),
            f"{1e3 * one.ring.model:.4f}",
            _against_model(one.ring, "overlapped"),
            f"{1e3 * one.netreduce.model:.4f}",
            _against_model(one.netreduce, "overlapped"),
            f"{one.speedup:.3f}",
        )
    return table


def _against_model(one: Timed, which: Literal["staged", "overlapped"]) -> str:
    seconds = one.staged if which == "staged" else one.overlapped
    return f"{1e3 * seconds:.4f} {100 * (seconds / one.model - 1):+6.2f}%"


def _stage_table(cluster: Cluster) -> Table:
    table = _table()
    for name in ("algorithm", "stage"):
        table.add_column(name)
    for name in ("alpha us", "ms"):
        table.add_column(name, justify="right")
    for algorithm in ALGORITHMS:
        stages = algorithm.stages(cluster, SIZE)
        if algorithm.name == "TA":
            stages.insert(1, tencent_stage_1_as_printed(cluster, SIZE))
        for stage in stages:
            shown = f"({stage.label})" if stage.label.endswith("as printed") else stage.label
            table.add_row(
                algorithm.name, shown, f"{float(stage.latency / US):g}", f"{float(stage.time / MS):.4f}"
            )
    return table


def _threshold_table() -> Table:
    table = _table()
    for name in ("P", "exact", "as B_intra GB/s", "equation (6)"):
        table.add_column(name, justify="right")
    for gpus, exact, relaxed in thresholds():
        table.add_row(str(gpus), _ratio(exact), f"{float(exact * INTER / GB):.4f}", _ratio(relaxed))
    return table


def _crossover_table() -> Table:
    table = _table()
    for name in ("faster", "than", "P", "B_intra GB/s", "alpha us", "for M"):
        table.add_column(name, justify="left" if name in ("faster", "than", "for M") else "right")
    for faster, found in (("PN", netreduce_crossovers()), ("TA", tencent_crossovers())):
        for cluster, sizes in found:
            table.add_row(
                faster,
                "FR",
                str(cluster.gpus),
                f"{float(cluster.intra / GB):g}",
                f"{float(cluster.alpha / US):g}",
                _sizes(sizes),
            )
    return table


def _training_table() -> Table:
    table = _table()
    for name in (
        "table",
        "model",
        "MB",
        "compute",
        "by",
        "comm.",
        "printed",
        "iteration",
        "printed",
        "to PN",
        "printed",
    ):
        table.add_column(name, justify="left" if name in {"model", "by"} else "right")
    for row in _training():
        table.add_row(
            str(row["table"]),
            row["model"],
            str(row["size_mb"]),
            f"{row['compute_ms']:.2f}",
            row["algorithm"],
            f"{row['communication_ms']:.2f}",
            _dash(row["printed_communication_ms"]),
            f"{row['iteration_ms']:.2f}",
            f"{row['printed_iteration_ms']:.2f}",
            _dash(row["to_netreduce"]),
            _dash(row["printed_to_netreduce"]),
        )
    return table


def _dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _sizes(sizes: Sizes) -> str:
    return sizes.when if sizes.size is None else f"{sizes.when} {float(sizes.size / MB):.6f} MB"


def _ratio(value: Fraction) -> str:
    return f"{value} = {float(value):.6f}"


def _table() -> Table:
    return Table(box=None, pad_edge=False)


def _show(console: Console, title: str, table: Table) -> None:
    console.print(title, style="bold", highlight=False)
    console.print(table)
    console.print()
