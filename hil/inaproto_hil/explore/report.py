"""What ``inaproto explore`` does with a configuration: search, with a progress line; table, run and JSON."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as ProgressBar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from inaproto.sim.explore import engine
from inaproto.sim.explore.ring.config import RingWorldConfig
from inaproto.sim.explore.ring.variants import VARIANTS, notes, ring_world
from inaproto.sim.explore.ring.world import RingWorld
from inaproto_hil.rigs import environment

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Search:
    """One search that ended."""

    world: RingWorld
    verdict: engine.Verdict
    seconds: float


def search(variant: str, config: RingWorldConfig, states_max: int) -> Search:
    world = ring_world(variant, config)
    return Search(world, *watched(world, states_max))


def watched(
    world: engine.Explorable[Any, Any], states_max: int, what: str = "", *, must_end: bool = False
) -> tuple[engine.Verdict, float]:
    """The verdict and the seconds that it took; with a progress line on a terminal."""
    begun = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        name = f"{what}: " if what else ""
        task = bar.add_task(f"{name}exploring", total=None)

        def progress(now: engine.Progress) -> None:
            bar.update(
                task,
                description=f"{name}{now.states:,} states, {now.states - now.expanded:,} to expand, "
                f"{now.transitions:,} transitions, depth {now.depth}",
            )

        verdict = engine.explore(world, states_max=states_max, progress=progress, must_end=must_end)
    return verdict, time.perf_counter() - begun


@dataclass(frozen=True, slots=True)
class Found:
    """A counterexample to show."""

    counterexample: engine.Counterexample
    is_shortest: bool
    interrupted: bool = False
    """Somebody stopped the search for a shorter one."""


def shortest(variant: str, found: Search, states_max: int) -> Found | None:
    """The counterexample, from the full search where reductions may have cost it its shortness."""
    shown = found.verdict.counterexample
    config = found.world.config
    if shown is None:
        return None
    if not config.reduced:
        return Found(shown, is_shortest=True)
    full = RingWorldConfig(**{**asdict(config), "reduced": False})
    try:
        shorter = search(variant, full, states_max).verdict.counterexample
    except engine.TooManyStates:
        shorter = None
    except (engine.Interrupted, KeyboardInterrupt):
        return Found(shown, is_shortest=False, interrupted=True)
    return Found(shown if shorter is None else shorter, is_shortest=shorter is not None)


def report_of(variant: str, done: Search, found: Found | None) -> dict[str, Any]:
    world = done.world
    return {
        "version": VERSION,
        "variant": variant,
        "config": asdict(world.config),
        "violations": 0 if found is None else 1,
        "counterexample": None if found is None else told(found.counterexample, found.is_shortest),
        "assumptions": assumptions(world.config),
        "notes": notes(world.config),
        **figures(done.verdict, done.seconds),
        "local_states": {"switch": len(world.switch), "ranks": [len(rank) for rank in world.ranks]},
        "memory_mib": memory_mib(),
        "environment": environment.describe(),
    }


def told(found: engine.Counterexample, is_shortest: bool | None = None) -> dict[str, Any]:
    """A counterexample of a report; ``is_shortest`` is None where all are."""
    said = {} if is_shortest is None else {"is_shortest": is_shortest}
    return {
        "kind": found.kind.name.lower(),
        "rule": found.rule,
        **said,
        "run": found.run,
        "aftermath": found.aftermath,
    }


def figures(verdict: engine.Verdict, seconds: float) -> dict[str, Any]:
    return {
        "states": verdict.states,
        "transitions": verdict.transitions,
        "finished_states": verdict.finished,
        "depth": verdict.depth,
        "seconds": round(seconds, 3),
    }


def assumptions(config: RingWorldConfig) -> str:
    """The main ones, on a line; ``--help`` has all."""
    paths = "FIFO paths" if not config.reorder else "FIFO paths but for the packets that come late"
    timers = "" if not config.early_timers else f", but for {config.early_timers}"
    reductions = "reduced by symmetry and eager ACKs (--full: not)"
    return "; ".join(
        (
            paths,
            "faults strike a packet when it is sent",
            f"timers expire once nothing of their flow is under way{timers}",
            '"can finish" is some way without further faults, no fairness',
            "ranks start in their order",
            reductions if config.reduced else "nothing else is reduced",
        )
    )


def memory_mib() -> int:
    """Memory of this process, at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def show(console: Console, variant: str, done: Search, found: Found | None) -> None:
    config, verdict, world = done.world.config, done.verdict, done.world
    table = Table(show_header=False, box=None, pad_edge=False)
    width = f"{config.psn_bits}-bit PSNs"
    if config.transport_window:
        width += f", {config.transport_window} packets unacknowledged"
    faults = [f"{config.losses} lost", f"{config.duplicates} duplicated"]
    if config.reorder:
        faults[-1] += " or late, any time"
    if config.early_timers:
        faults.append(f"{config.early_timers} timer{'s' * (config.early_timers > 1)} too early")
    if config.spare_acks:
        faults.append("acknowledgements spared")
    size = f"{config.ranks} ranks, window {config.window}, {config.length} packets a message"
    stopped = verdict.counterexample is not None and verdict.counterexample.kind is engine.Kind.BROKEN
    for name, value in (
        ("variant", f"{variant}: {VARIANTS[variant].text}"),
        ("ring", f"{size}, {config.messages} messages, {width}"),
        ("faults at most", ", ".join(faults)),
        ("states", f"{verdict.states:,}" + (" until the rule was broken" if stopped else "")),
        ("transitions", f"{verdict.transitions:,}"),
        ("finished states", f"{verdict.finished:,}"),
        ("depth", f"{verdict.depth:,} steps"),
        ("local states", f"switch {len(world.switch):,}, ranks " + _local(world)),
        ("time", f"{done.seconds:.1f} s, {memory_mib():,} MiB"),
        ("violations", "0" if found is None else "1"),
    ):
        table.add_row(name, value)
    console.print(table)
    if found is None:
        console.print(f"assumed: {assumptions(config)}", highlight=False, soft_wrap=True)
    for note in notes(config):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    if found is not None:
        print_run(console, found.counterexample, "A shortest run" if found.is_shortest else "A run")
    if VARIANTS[variant].remark:
        console.print(f"\nKnown of this variant: {VARIANTS[variant].remark}", highlight=False)


def _local(world: RingWorld) -> str:
    return ", ".join(f"{len(rank):,}" for rank in world.ranks)


def print_run(console: Console, found: engine.Counterexample, title: str) -> None:
    console.print(f"\n[bold]{found.kind.value}[/bold]: {escape(found.rule)}", highlight=False, soft_wrap=True)
    console.print(f"{title}, {len(found.run)} steps:", highlight=False)
    _print_steps(console, found.run, 1)
    if found.aftermath:
        console.print("\nOne way on from there, without faults:", highlight=False)
        _print_steps(console, found.aftermath, len(found.run) + 1)


def _print_steps(console: Console, steps: list[str], first_number: int) -> None:
    for number, lines in enumerate(steps, start=first_number):
        first, *rest = lines.splitlines()
        console.print(f"{number:4}. {first}", highlight=False, markup=False, soft_wrap=True)
        for line in rest:
            console.print(f"        {line}", highlight=False, markup=False, soft_wrap=True)
