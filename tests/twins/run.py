"""Runs simulated worlds with compiled kernels and with their numpy twins, and compares digests: make twins.

A digest covers every event of a world: what is sent, by whom, when, and every byte of it. Worlds of words
carry no frames, so kernels have no part in them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.progress import track

from inaproto.core import kernels
from inaproto.sim.campaign.kinds import FRAME_KINDS, WorldKind, draw_kind
from inaproto.sim.frames.world import World

BLOCK_SEEDS: Final = 10


class Outcome(NamedTuple):
    world: WorldKind
    seeds: int
    differing: list[int]
    """Seeds whose digests are not the same."""
    broken: list[int]
    """Seeds in which a rule was broken, by either."""

    def with_more(self, more: Outcome) -> Outcome:
        differing, broken = self.differing + more.differing, self.broken + more.broken
        return Outcome(self.world, self.seeds + more.seeds, differing, broken)


def digest(world: WorldKind, seed: int, name: str) -> tuple[str, bool]:
    """Of a world's events, and whether a rule was broken in it, with the kernels of that name."""
    kernels.choose(name)
    result = World(draw_kind(seed, world)).run()
    return result.digest, result.violation is not None


def compared(world: WorldKind, first: int, past: int) -> Outcome:
    differing, broken = [], []
    for seed in range(first, past):
        (compiled, fails), (twins, twins_fail) = (digest(world, seed, name) for name in ("compiled", "numpy"))
        if compiled != twins:
            differing.append(seed)
        if fails or twins_fail:
            broken.append(seed)
    return Outcome(world, past - first, differing, broken)


def outcomes(worlds: list[WorldKind], seeds: range, jobs: int, console: Console) -> Iterator[Outcome]:
    blocks = [
        (world, first, min(first + BLOCK_SEEDS, seeds.stop))
        for first in range(seeds.start, seeds.stop, BLOCK_SEEDS)
        for world in worlds
    ]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        ran = pool.map(compared, *zip(*blocks, strict=True))
        yield from track(ran, "worlds, twice", len(blocks), console=console)


def _named(seeds: list[int]) -> str:
    return f" ({', '.join(map(str, seeds[:10]))}{' ...' if len(seeds) > 10 else ''})" if seeds else ""


@click.command()
@click.option(
    "--seeds", default=2000, show_default=True, type=click.IntRange(1), help="Of each kind of world."
)
@click.option("--first", default=0, show_default=True, type=click.IntRange(0), help="The first seed.")
@click.option(
    "--world",
    "worlds",
    multiple=True,
    type=click.Choice([kind.value for kind in FRAME_KINDS]),
    help="Kind of worlds; may be given several times.  [default: all that carry frames]",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: all cores]")
@click.option("--json", "json_at", type=click.Path(dir_okay=False, path_type=Path), help="Figures, as JSON.")
def main(seeds: int, first: int, worlds: tuple[str, ...], jobs: int | None, json_at: Path | None) -> None:
    """Run worlds with compiled kernels and with numpy; exits 1 unless all digests are the same."""
    kernels.choose("compiled")
    began = time.monotonic()
    kinds = [WorldKind(world) for world in worlds] or list(FRAME_KINDS)
    found = {kind: Outcome(kind, 0, [], []) for kind in kinds}
    console = Console(stderr=True)
    cores = jobs or len(os.sched_getaffinity(0))
    for ran in outcomes(kinds, range(first, first + seeds), cores, console):
        found[ran.world] = found[ran.world].with_more(ran)
    if json_at is not None:
        record = {
            "first": first,
            "kernels": kernels.description(),
            "wall_s": time.monotonic() - began,
            "worlds": [outcome._asdict() for outcome in found.values()],
        }
        json_at.write_text(json.dumps(record, indent=1) + "\n")
    for kind, outcome in found.items():
        differ = f"{len(outcome.differing)} digests differ{_named(outcome.differing)}"
        broken = f"{len(outcome.broken)} worlds break a rule{_named(outcome.broken)}"
        click.echo(f"{kind}: {outcome.seeds} seeds, {differ}, {broken}")
    wrong = any(outcome.differing or outcome.broken for outcome in found.values())
    raise SystemExit(int(wrong))


if __name__ == "__main__":
    main()
