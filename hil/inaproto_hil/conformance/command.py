"""``inaproto hil accelerator``: which rule an accelerator breaks first, with the frame."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from inaproto.errors import InaprotoError, InvariantBroken
from inaproto.option_types import ReportFile, write_report

VERSION: Final = 1


@click.command()
@click.option(
    "--target",
    required=True,
    help="software, rtl[:SIZES], or a board by its registers: fpga:xdma:PATH, fpga:etherbone:HOST, "
    "fpga:uart:PATH, fpga:socket:PATH (of inaproto rtl serve).",
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    help="Interface at which a port of the board is: packet:INTERFACE; once for each port, in their order.",
)
@click.option("--frames", default=2000, show_default=True, type=click.IntRange(0), help="Of random traffic.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of random traffic.")
@click.option(
    "--all", "shows_all", is_flag=True, help="Tell every broken rule with its frames, not the first."
)
@click.option(
    "--json", "json_at", type=ReportFile(), metavar="FILE", help="Write the report there; - is stdout."
)
def accelerator(
    target: str, ports: tuple[str, ...], frames: int, seed: int, shows_all: bool, json_at: str | None
) -> None:
    """Try every rule of the protocol at an accelerator, and say which does not hold, with the frame.

    The rules come from the plainest on, and say byte for byte what must leave; random traffic under faults
    is the last. What is wrong is told as inaproto inspect tells it, with the frames before it. A board must
    have nothing else at its ports, and no rings that matter: they are taken out. Exit status 1 if a rule is
    broken.
    """
    import trio
    from rich.console import Console

    console = Console(stderr=json_at == "-")
    try:
        report = trio.run(_judge, target, ports, frames, seed, shows_all, console)
    except InaprotoError as error:
        if isinstance(error, InvariantBroken):
            raise
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(2)
    write_report(report, json_at)
    sys.exit(1 if report["broken"] else 0)


async def _judge(
    text: str, ports: Sequence[str], frames: int, seed: int, shows_all: bool, console: Any
) -> dict[str, Any]:
    from dataclasses import asdict

    from rich.progress import Progress

    from inaproto_hil.conformance.opening import opened
    from inaproto_hil.conformance.suite import Verdict, judge, rules_of
    from inaproto_hil.rigs.environment import describe

    found: list[Verdict] = []
    rules = rules_of(seed, frames)
    async with opened(text, ports) as target:
        console.print(f"{len(rules)} rules at {target.name}", highlight=False, markup=False)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("rules", total=len(rules))
            async for verdict in judge(target, rules):
                progress.update(task, advance=1)
                is_first = not any(one.broken for one in found)
                found.append(verdict)
                if verdict.broken is None:
                    continue
                progress.console.print(
                    f"[red]broken[/red]  {verdict.rule.name}  ({verdict.rule.where})",
                    highlight=False,
                    soft_wrap=True,
                )
                if is_first or shows_all:
                    for line in verdict.broken.lines():
                        progress.console.print(
                            f"        {line}", highlight=False, markup=False, soft_wrap=True
                        )
        broken = [one for one in found if one.broken is not None]
        total, wall_s = sum(one.frames for one in found), sum(one.wall_s for one in found)
        said = f"[red]{len(broken)} broken[/red]" if broken else "[green]all hold[/green]"
        console.print(f"{len(found)} rules, {total:,} frames, {wall_s:.1f} s: {said}", highlight=False)
        return {
            "version": VERSION,
            "target": text,
            "limits": asdict(target.limits),
            "seed": seed,
            "environment": describe(),
            "broken": [one.rule.name for one in broken],
            "rules": [
                {
                    "rule": one.rule.name,
                    "where": one.rule.where,
                    "holds": one.broken is None,
                    "frames": one.frames,
                    "wall_s": round(one.wall_s, 4),
                    "report": [] if one.broken is None else list(one.broken.lines()),
                }
                for one in found
            ],
        }
