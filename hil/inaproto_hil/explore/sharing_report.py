"""``inaproto explore --world sharing``: search a small sharing group, table, run and JSON."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inaproto.errors import ConfigError
from inaproto.option_types import write_report
from inaproto.sim.explore import engine
from inaproto.sim.explore.sharing.config import RANGES, SharingWorldConfig
from inaproto.sim.explore.sharing.variants import SHARING_VARIANTS, sharing_config
from inaproto.sim.explore.sharing.world import SharingWorld
from inaproto_hil.explore.report import VERSION, figures, told
from inaproto_hil.rigs import environment

BOTH_RULES: Final = ("by-index", "equal-index")
ASSUMED: Final = (
    "letters under way are in no order; timers expire when what they wait for can no longer come, but for "
    'the early ones; an operation whose seats differ in path ends by the fallback; "can finish" is some way '
    "without further faults, no fairness"
)


def explore_sharing(variant: str, states_max: int, json_at: str | None, sizes: dict[str, Any]) -> int:
    """The exit status. ``product``: both rules."""
    names = BOTH_RULES if variant == "product" else (variant,)
    try:
        configs = {name: sharing_config(name, **sizes) for name in names}
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    console = Console(stderr=json_at == "-")
    reports, status = [], 0
    for name, config in configs.items():
        world, begun = SharingWorld(config), time.perf_counter()
        try:
            verdict = engine.explore(world, states_max=states_max)
        except (engine.TooManyStates, engine.Interrupted) as error:
            click.echo(f"inaproto: {name}: no verdict: {error}", err=True)
            return 130 if isinstance(error, engine.Interrupted) else 2
        report = _report_of(name, world, verdict, time.perf_counter() - begun)
        reports.append(report)
        _show(console, report)
        status = max(status, report["violations"])
    write_report({"version": VERSION, "worlds": reports}, json_at)
    return status


def _report_of(name: str, world: SharingWorld, verdict: engine.Verdict, seconds: float) -> dict[str, Any]:
    found = verdict.counterexample
    return {
        "variant": name,
        "rule": world.config.rule.value,
        "config": {size: getattr(world.config, size) for size in _sizes()},
        "violations": 0 if found is None else 1,
        "counterexample": None if found is None else told(found),
        "assumptions": ASSUMED,
        **figures(verdict, seconds),
        "environment": environment.describe(),
    }


def _sizes() -> list[str]:
    return [field.name for field in fields(SharingWorldConfig) if field.name in RANGES]


def _show(console: Console, report: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    variant = SHARING_VARIANTS[report["variant"]]
    table.add_row("variant", f"{variant.name}: {variant.text}")
    table.add_row("rule", report["rule"])
    table.add_row("size", ", ".join(f"{name} {value}" for name, value in report["config"].items()))
    for name in ("states", "transitions", "finished_states", "depth"):
        table.add_row(name.replace("_", " "), f"{report[name]:,}")
    table.add_row("time", f"{report['seconds']:.1f} s")
    table.add_row("violations", str(report["violations"]))
    console.print(table)
    found = report["counterexample"]
    if found is None:
        console.print(f"assumed: {report['assumptions']}\n", highlight=False, soft_wrap=True)
        return
    console.print(f"\n{engine.Kind[found['kind'].upper()].value}: {escape(found['rule'])}", highlight=False)
    console.print(f"A shortest run, {len(found['run'])} steps:", highlight=False)
    for number, step in enumerate(found["run"], 1):
        text = step.replace("\n", "\n      ")
        console.print(f"  {number}. {escape(text)}", highlight=False, soft_wrap=True)
