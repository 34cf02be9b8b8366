"""The table of ``inaproto bench training``, from its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from inaproto_hil.bench.peers.table import NAMES, print_table, who_took_part

COLUMNS: Final = (
    "model",
    "ranks",
    "Mbit/s",
    "who",
    "ms",
    "least-most",
    "compute",
    "comm.",
    "link",
    "exposed",
    "overlap",
    "samples\n/s",
    "CPU s\n/step",
    "cores\nbusy",
    "by\nothers",
    "x gloo",
    "bits",
    "loss\noff by",
)


def show(console: Console, report: Mapping[str, Any]) -> None:
    """With where it was measured, why rows are no better, and who was not measured."""
    print_table(console, heading(report), table(report), notes(report))


def table(report: Mapping[str, Any]) -> Table:
    """What was not measured is ``-``."""
    found = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        found.add_column(name, justify="left" if name in {"model", "who"} else "right", no_wrap=True)
    for row in report["rows"]:
        found.add_row(*_cells(row))
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    agreed, off = row["agreement"], row["loss_difference"]
    by = "" if row["path"] in {"", "switch"} else f" ({row['path']})"
    return [
        row["model"],
        str(row["ranks"]),
        f"{row['rate_bps'] / 1e6:g}",
        NAMES[row["contender"]] + by,
        f"{row['step_ms']:.0f}",
        f"{row['step_ms_min']:.0f}-{row['step_ms_max']:.0f}",
        _number(row["compute_ms"], ".0f"),
        _number(row["communication_ms"], ".0f"),
        f"{row['link_ms']:.0f}",
        _number(row["exposed"], ".0%"),
        _number(row["overlap"], ".0%"),
        f"{row['samples_per_s']:.1f}",
        f"{row['cpu_s_per_step']:.2f}",
        f"{row['busy']:.0%}",
        f"{row['others_share']:.0%}",
        _number(row["x_gloo"], ".2f"),
        "equal" if not agreed["differing"] else f"{agreed['differing']} of {agreed['checks']} differ",
        "-" if off is None else f"{off['largest']:.1g}",
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def heading(report: Mapping[str, Any]) -> list[str]:
    """Where and how it was measured."""
    config, env = report["config"], report["env"]
    load = " then ".join(f"{one[0]:.1f}" for one in (env["load"], env["load_after"]))
    turns = f"{config['rounds']} rounds of turns of {config['turn_s']:g} s"
    cores = f"{env['cores_usable']} cores for all ranks and daemons"
    samples = f"batch {config['batch']} a rank, scale {config['scale']:g}"
    if config["bucket_mib"] is not None:
        samples += f", buckets of {config['bucket_mib']:g} MiB"
    return [
        f"# a link each; {samples}; medians of {turns}",
        f"# {env['cpu']}, {cores}, kernel {env['kernel']}, load {load}",
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """Why rows are no better, who was not measured, and what was wrong."""
    found = []
    for row in report["rows"]:
        where = f"{row['model']}, {row['ranks']} ranks, {row['rate_bps'] / 1e6:g} Mbit/s"
        found += [f"# {where}: {why}" for why in row["why_not_faster"]]
        if row["agreement"]["differing"]:
            found.append(f"# DIFFERENT, {NAMES[row['contender']]}: {where}: {row['agreement']['example']}")
    return found + who_took_part(report)
