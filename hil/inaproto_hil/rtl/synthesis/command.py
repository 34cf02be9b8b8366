"""``inaproto rtl fit``: tables of what blocks take, and the whole beside the paper's."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from inaproto.errors import LocalMisuse, Unsupported
from inaproto.option_types import FiniteRange, ReportFile, write_report
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.synthesis.blocks import BLOCKS, TOP
from inaproto_hil.rtl.synthesis.clock import DEVICE, PLACERS, ROUTERS, SMALL_SIZES
from inaproto_hil.rtl.synthesis.measure import Asked, Row, measure
from inaproto_hil.rtl.synthesis.paper import (
    DIFFERS,
    NETREDUCE,
    NETREDUCE_PER_CENT,
    PAPER_SIZES,
    extrapolations,
)
from inaproto_hil.rtl.synthesis.resources import FAMILIES
from inaproto_hil.rtl.synthesis.tools import LIMIT_S, NEXTPNR, SEED, YOSYS, version

_WIDTH: Final = 132
"""Columns of tables that no terminal bounds."""


def document(asked: Asked, rows: Sequence[Row], skipped: Mapping[str, str]) -> dict[str, Any]:
    """All that the command writes as JSON."""
    return {
        "tools": dict(version(tool) for tool in ("amaranth", YOSYS, NEXTPNR)),
        "family": asked.family,
        "device": " ".join(DEVICE),
        "seed": asked.seed,
        "blocks": [asdict(row) for row in rows],
        "extrapolated": [
            {"from_words": list(widths), "words": PAPER_SIZES.words, "lut": found.lut, "ff": found.ff}
            for *widths, found in extrapolations(rows)
        ],
        "skipped": dict(skipped),
        "paper": {
            **NETREDUCE,
            "per_cent": NETREDUCE_PER_CENT,
            "sizes": asdict(PAPER_SIZES),
            "differs": list(DIFFERS),
        },
    }


def _number(value: float) -> str:
    return "-" if not value else f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def blocks_table(family: str, rows: Iterable[Row]) -> Table:
    table = Table(box=None, pad_edge=False, title=f"blocks on {family}", title_justify="left")
    table.add_column("block")
    is_ecp5 = family == "ecp5"
    memory = "EBR" if is_ecp5 else "BRAM36"
    clock = ("MHz", "longest path") if is_ecp5 else ()
    for heading in ("words", "LUT", "as RAM", "as SRL", "FF", memory, "DSP", "carry", "CPU s", *clock):
        table.add_column(heading, justify="left" if heading == "longest path" else "right")
    for row in rows:
        found, placed = row.resources, row.placed
        shown = ["-"] * 7
        if found is not None:
            logic = (found.luts, found.lut_ram, found.lut_shift, found.ff)
            shown = [_number(value) for value in (*logic, found.brams, found.dsp, found.carry)]
        path = "" if placed is None else f"{placed.cells} cells, {placed.logic_ns} + {placed.routing_ns} ns"
        clocked = ["-" if placed is None else f"{placed.mhz:.1f}", path] if is_ecp5 else []
        cells = [row.block, str(row.parameters.words), *shown, f"{row.cpu_seconds:.1f}", *clocked]
        table.add_row(*cells, style="red" if row.violations or row.failed else None)
    return table


def paper_table(rows: Sequence[Row]) -> Table:
    """The rows of the whole accelerator, what follows from them, and the paper's."""
    table = Table(box=None, pad_edge=False, title="beside the paper", title_justify="left")
    table.add_column("")
    for heading in ("LUT", "FF", "BRAM36"):
        table.add_column(heading, justify="right")
    table.add_row("NetReduce, section 4", *map(_number, NETREDUCE.values()))
    table.add_row("  of its chip", *(f"{share} %" for share in NETREDUCE_PER_CENT.values()))
    for row in rows:
        sizes, found = row.parameters, row.resources
        if row.block != TOP or found is None:
            continue
        what = f"{sizes.ports} ports of {32 * sizes.words} bits, {sizes.children} ranks, {sizes.slots} slots"
        table.add_row(f"ours, {what}", *map(_number, (found.luts, found.ff, found.brams)))
    for narrow, wide, found in extrapolations(rows):
        what = f"extrapolated to {32 * PAPER_SIZES.words} bits from {32 * narrow} and {32 * wide}"
        table.add_row(f"ours, {what}", _number(found.luts), _number(found.ff), "")
    return table


def _sizes(
    words: tuple[int, ...], changes: tuple[str, ...], is_paper: bool, is_small: bool
) -> tuple[Parameters, ...]:
    if is_paper and is_small:
        raise click.UsageError("--paper and --small are of different sizes")
    sizes = PAPER_SIZES if is_paper else SMALL_SIZES if is_small else Parameters()
    known = {known.name for known in fields(Parameters)}
    try:
        for change in changes:
            name, _, value = change.partition("=")
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(sorted(known))}")
            sizes = replace(sizes, **{name: int(value)})
        return tuple(replace(sizes, words=width) for width in words) or (sizes,)
    except (LocalMisuse, ValueError) as error:
        raise click.BadParameter(str(error)) from None


def _names(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name for name in value.split(",") if name)
    unknown = [name for name in names if name not in BLOCKS]
    if unknown:
        raise click.BadParameter(f"no block {', '.join(unknown)}: there are {', '.join(BLOCKS)}")
    return names or tuple(BLOCKS)


@click.command()
@click.option("--blocks", callback=_names, default="", help="Names, with commas between; else all.")
@click.option("--family", type=click.Choice(FAMILIES), default="xcup", show_default=True)
@click.option("--words", type=int, multiple=True, help="Words of the bus; several give a row for each.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Another size, such as slots=32.")
@click.option("--paper", "is_paper", is_flag=True, help="Sizes of the paper where no option gives one.")
@click.option("--small", "is_small", is_flag=True, help="The same, of sizes at which all fits an ECP5.")
@click.option("--memories", "memories_only", is_flag=True, help="Memories alone, in far less time.")
@click.option("--place/--no-place", default=True, help="Place and route, for the clock; ecp5 only.")
@click.option("--seed", type=int, default=SEED, show_default=True, help="Of nextpnr.")
@click.option("--placer", type=click.Choice(PLACERS), help=f"Of nextpnr; else heap, and static for {TOP}.")
@click.option(
    "--router", type=click.Choice(ROUTERS), help=f"Of nextpnr; else router1, and router2 for {TOP}."
)
@click.option(
    "--limit",
    "limit_s",
    type=FiniteRange(1, 1_000_000),
    default=LIMIT_S,
    show_default=True,
    help="CPU seconds of a tool.",
)
@click.option("--json", "json_at", type=ReportFile(), metavar="FILE", help="Write all there; - is stdout.")
def main(
    blocks: tuple[str, ...],
    family: str,
    words: tuple[int, ...],
    changes: tuple[str, ...],
    is_paper: bool,
    is_small: bool,
    memories_only: bool,
    place: bool,
    seed: int,
    placer: str | None,
    router: str | None,
    limit_s: float,
    json_at: str | None,
) -> None:
    """What blocks of the accelerator take, and the clock that they reach. Ends with 1 if one holds what must
    not be there, or a tool gave no result."""
    at = _sizes(words, changes, is_paper, is_small)
    asked = Asked(blocks, family, at, seed, limit_s, memories_only, place, placer, router)
    log = Console(stderr=True, highlight=False)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name in asked.blocks:
        for sizes in asked.sizes:
            log.print(f"{name}, {sizes.words} words ...", style="dim")
            try:
                with log.status("") as status:
                    rows.append(measure(asked, name, sizes, on_step=status.update))
            except Unsupported as error:
                skipped[name] = error.why
                break
    shown = Console(stderr=json_at == "-", highlight=False)
    if not shown.is_terminal:
        shown.width = _WIDTH
    shown.print(blocks_table(family, rows))
    for row in rows:
        if row.placed is not None:
            ends = f"{row.placed.start} -> {row.placed.end}"
            shown.print(f"longest in {row.block}, {row.parameters.words} words: {ends}", markup=False)
    if family != "ecp5":
        shown.print()
        shown.print(paper_table(rows))
        for sentence in DIFFERS:
            shown.print(f"- {sentence}")
    for name, why in skipped.items():
        shown.print(f"{name} is left out: {why}", style="yellow", markup=False)
    for row in rows:
        for problem in (*row.violations, *([row.failed] if row.failed else [])):
            shown.print(f"{row.block}, {row.parameters.words} words: {problem}", style="red", markup=False)
    if json_at is not None:
        write_report(document(asked, rows, skipped), json_at)
    sys.exit(1 if any(row.violations or row.failed for row in rows) else 0)
