"""Campaigns: a range of seeds, in blocks, whose outcomes are written down so that a long one can go on.

A campaign's state file says which blocks are done and what they came to. It belongs to one program and one
set of seeds: results of two programs are never mixed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError
from inaproto_hil.soak.block import Block, run_block
from inaproto_hil.soak.engines import Engine, WorkerDied
from inaproto_hil.soak.tally import Tally

STATE_NAME: Final = "state.json"
FORMAT: Final = 1
BLOCK_SEEDS: Final = 8
_WRITE_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to run; ``stop`` None: until its time is up."""

    first: int
    stop: int | None
    variant: str | None
    version: str
    fingerprint: str
    """Of the program's source."""

    @property
    def seeds(self) -> int | None:
        return None if self.stop is None else self.stop - self.first

    def blocks(self) -> Iterator[Block]:
        number, first = 0, self.first
        while self.stop is None or first < self.stop:
            stop = first + BLOCK_SEEDS if self.stop is None else min(first + BLOCK_SEEDS, self.stop)
            yield Block(number, first, stop, self.variant)
            number, first = number + 1, stop


def parse_seeds(text: str) -> tuple[int, int]:
    """``N`` or ``A:B``, as first seed and the one behind the last."""
    first, colon, stop = text.rpartition(":")
    try:
        begin, end = int(first) if colon else 0, int(stop)
    except ValueError:
        begin, end = 0, 0
    if not 0 <= begin < end:
        raise ConfigError(f"--seeds {text}: write a count (2000), or first:behind-last (2000:4000)")
    return begin, end


@dataclass(slots=True)
class Campaign:
    plan: Plan
    folder: Path | None
    """Of the state file."""
    tally: Tally = field(default_factory=Tally)
    done: set[int] = field(default_factory=set)
    """Blocks behind ``next`` that are done already."""
    next: int = 0
    """All blocks before this one are done."""
    interrupted: str = ""
    """Why it stopped before its end; empty: it did not."""
    _written_at: float = 0.0

    @property
    def finished(self) -> bool:
        return self.plan.seeds is not None and self.tally.seeds == self.plan.seeds

    def run(self, engine: Engine, *, minutes: float | None, progress: Callable[[Tally], None]) -> None:
        """Run what is not done yet; ``progress`` is told after each block."""
        until = None if minutes is None else time.monotonic() + 60 * minutes

        def left() -> Iterator[Block]:
            for block in self.plan.blocks():
                if until is not None and time.monotonic() >= until:
                    self.interrupted = "time is up"
                    return
                if block.number >= self.next and block.number not in self.done:
                    yield block

        try:
            for block, tally in engine.outcomes(run_block, left()):
                self._account(block, tally)
                progress(self.tally)
        except KeyboardInterrupt:
            self.interrupted = "stopped by Ctrl-C"
        except WorkerDied as died:
            self.interrupted = str(died)
        self.write(at_once=True)

    def _account(self, block: Block, tally: Tally) -> None:
        self.tally.add(tally)
        self.done.add(block.number)
        while self.next in self.done:
            self.done.remove(self.next)
            self.next += 1
        self.write(at_once=False)

    # --- the state file

    def write(self, *, at_once: bool) -> None:
        if self.folder is None or (not at_once and time.monotonic() - self._written_at < _WRITE_EVERY_S):
            return
        state = {
            "format": FORMAT,
            "plan": asdict(self.plan),
            "next": self.next,
            "done": sorted(self.done),
            "tally": self.tally.as_record(),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / STATE_NAME, json.dumps(state))
        self._written_at = time.monotonic()


def open_campaign(plan: Plan, folder: Path | None, *, resume: bool) -> Campaign:
    """A new campaign, or the one whose state is in ``folder``. Raises ``ConfigError``."""
    path = None if folder is None else folder / STATE_NAME
    if path is None or not path.exists():
        if resume:
            raise ConfigError(f"--resume: there is no campaign in {folder} ({STATE_NAME} is missing)")
        return Campaign(plan, folder)
    if not resume:
        if not _read(path).finished:
            raise ConfigError(
                f"--out {folder} holds a campaign that is not finished: add --resume to go on with it, "
                f"or remove {path} to give it up"
            )
        return Campaign(plan, folder)
    found = _read(path)
    for name, was in asdict(found.plan).items():
        now = getattr(plan, name)
        if was != now:
            what = "the program has changed" if name == "fingerprint" else f"{name} is {now}, was {was}"
            raise ConfigError(
                f"--resume: the campaign in {folder} is another one: {what}. Begin anew in another folder"
            )
    return found


def _read(path: Path) -> Campaign:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ConfigError(f"{path}: format {state['format']}, expected {FORMAT}; remove it to begin anew")
        return Campaign(
            plan=Plan(**state["plan"]),
            folder=path.parent,
            tally=Tally.from_record(state["tally"]),
            done=set(state["done"]),
            next=int(state["next"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}); remove it to begin anew") from None


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing, whenever the machine stops."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
