"""What a worker process does: run a few seeds, or tell one failing seed in full and reduce it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from inaproto.sim.campaign.failure import say_failure
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import Log, Program
from inaproto.sim.campaign.sequence_diagram import draw
from inaproto.sim.campaign.shrink import Shrunk, shrink
from inaproto.sim.campaign.worlds import draw_any
from inaproto.sim.kernel.violated import Violation
from inaproto_hil.soak.parts import PRODUCT, installed
from inaproto_hil.soak.tally import Tally

SHRINK_RUNS_MAX = 600


@dataclass(frozen=True, slots=True)
class Block:
    """Seeds ``first`` to ``stop - 1``."""

    number: int
    first: int
    stop: int
    variant: str | None = None
    world: str = WorldKind.SINGLE


@contextmanager
def _collecting_between_worlds() -> Iterator[None]:
    """A world is one knot of cycles, and makes few others: what it leaves is collected when it has ended.

    Until then the collector would only look at what is in use; what was there before the block is left out.
    Where a program has frozen what it keeps, that stays so.
    """
    before = gc.get_threshold()
    gc.collect()
    is_frozen = gc.get_freeze_count() > 0
    if not is_frozen:
        gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()


def run_block(block: Block) -> tuple[Block, Tally]:
    tally = Tally()
    cpu_s = 0.0
    with installed(block.variant), _collecting_between_worlds():
        for seed in range(block.first, block.stop):
            world = PRODUCT.world(draw_any(seed, WorldKind(block.world)))
            began = time.process_time()
            result = world.run()
            del world
            gc.collect()
            cpu_s += time.process_time() - began
            tally.add_world(seed, result)
    tally.blocks.append((block.first, tally.steps_total, cpu_s))
    return block, tally


@dataclass(frozen=True, slots=True)
class Telling:
    """A failing seed that is to be told in full: its log, and that of a smaller world that fails alike."""

    seed: int | str
    folder: str
    program: Program
    shrink: bool
    world: str = WorldKind.SINGLE


@dataclass(frozen=True, slots=True)
class Told:
    seed: int | str
    text: str
    log: str
    drawing: str | None
    """SVG file of the last moments, of the smaller world if there is one; worlds of words have none."""
    shrunk_log: str | None = None
    shrunk_text: str | None = None
    violation: Violation | None = None
    """Violation of this run of the seed."""


def tell(telling: Telling) -> Told:
    """Writes the logs; the file names are safe for any seed."""
    folder = Path(telling.folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"seed-{telling.seed}"
    with installed(telling.program.variant):
        log = PRODUCT.record(draw_any(telling.seed, WorldKind(telling.world)), telling.program)
        path, drawing, text = _write(log, folder, name)
        told = Told(telling.seed, text, path, drawing, violation=log.violation)
        if not telling.shrink or log.violation is None:
            return told
        shrunk = shrink_log(log)
        small = PRODUCT.record(shrunk.config, telling.program, shrunk.fates)
    path, drawing, text = _write(small, folder, f"{name}-shrunk")
    return replace(told, drawing=drawing, shrunk_log=path, shrunk_text=f"{shrunk}\n{text}")


def _write(log: Log, folder: Path, name: str) -> tuple[str, str | None, str]:
    """Write the log and its drawing; returns their paths, and the failure in words."""
    path, drawing = folder / f"{name}.jsonl", folder / f"{name}.svg"
    log.write(path)
    if log.of_frames:
        drawing.write_text(draw(log), encoding="utf-8")
    return str(path), str(drawing) if log.of_frames else None, say_failure(log, path=str(path))


def shrink_log(log: Log) -> Shrunk:
    return shrink(log.config, PRODUCT.run, runs_max=SHRINK_RUNS_MAX)
