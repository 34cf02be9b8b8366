"""The report as tables on a terminal, from the JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inaproto_controller.simulate.scenario.measures import BY_KEY, MEASURES, Measure

_COLUMNS: Final = 4
"""Variants in one table."""


def cell(measure: Measure, value: dict[str, Any]) -> str:
    """Mean, and the confidence interval where there is one."""
    shown = measure.show(value["mean"])
    if value["mean"] is None or value["ci95"] is None:
        return shown
    return f"{shown} ± {measure.show_half_width(value['ci95'])}"


def show(console: Console, found: dict[str, Any]) -> None:
    console.print(Text(found["title"], style="bold"))
    console.print(Text(describe(found)))
    for variants in _chunks(found["variants"]):
        console.print()
        console.print(_measures(variants, len(found["seeds"])))
        console.print()
        console.print(_models(found["models"], variants))
    console.print()
    for line in found["verdict"]:
        console.print(Text(line))
    for line in found["notes"]:
        console.print(Text(line, style="yellow"))


def describe(found: dict[str, Any]) -> str:
    """The cluster in one sentence."""
    cluster, speeds = found["cluster"], found["speeds"]
    layers = " + ".join(map(str, cluster["switches"]))
    count = found["variants"][0]["runs"][0]["jobs"]
    jobs = f"{count} job{'s' * (count != 1)}, {len(found['seeds'])} seed"
    quota = f"for each {cluster['capacity_model'] or cluster['quota']}"
    if cluster["graph"] and not cluster["capacity_model"]:
        quota = f"where {cluster['graph']} says so"
    return (
        f"{cluster['hosts']} hosts, {layers} switches, {cluster['links']} links; one operation with INA at a "
        f"time {quota}; {8e-9 * speeds['bandwidth_bytes_s']:g} Gbit/s, x "
        f"{speeds['ina_ratio']:g} with INA; {jobs}{'s' * (len(found['seeds']) != 1)}"
    )


def _chunks(variants: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for first in range(0, len(variants), _COLUMNS):
        yield variants[first : first + _COLUMNS]


def _measures(variants: Sequence[dict[str, Any]], seeds: int) -> Table:
    spread = "mean ± 95 % confidence" if seeds > 1 else "one seed"
    table = Table(box=None, pad_edge=False)
    table.add_column(Text(spread))
    for variant in variants:
        table.add_column(Text(variant["name"]), justify="right", overflow="fold")
    for measure in MEASURES:
        cells = [Text(cell(measure, variant["measures"][measure.key])) for variant in variants]
        table.add_row(Text(measure.label), *cells)
    return table


def _models(models: Sequence[dict[str, Any]], variants: Sequence[dict[str, Any]]) -> Table:
    share = BY_KEY["saved_share"]
    table = Table(box=None, pad_edge=False)
    table.add_column(Text("saved, by model"))
    table.add_column(Text("at most"), justify="right")
    for variant in variants:
        table.add_column(Text(variant["name"]), justify="right", overflow="fold")
    for model in models:
        cells = []
        for variant in variants:
            found = variant["by_model"].get(model["name"])
            cells.append(Text("no job" if found is None else cell(share, found["saved_share"])))
        table.add_row(Text(model["name"]), Text(share.show(model["possible_share"])), *cells)
    return table
