"""Campaigns: a range of seeds, in blocks, whose outcomes are written down so that a long one can go on.

A campaign's state file says which blocks are done and what they came to. It belongs to one program and one
set of seeds: results of two programs are never mixed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError
from inaproto.option_types import number_range
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.task_engines import Engine, WorkerDied
from inaproto_hil.soak.block import Block, run_block
from inaproto_hil.soak.stop import Stop, stopping_in_order
from inaproto_hil.soak.tally import Tally

STATE_NAME: Final = "state.json"
FORMAT: Final = 1
BLOCK_SEEDS: Final = 8
TIME_IS_UP: Final = "time is up"
STOPPED: Final = "stopped by Ctrl-C or SIGTERM"
_WRITE_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to run; ``stop`` None: until its time is up."""

    first: int
    stop: int | None
    variant: str | None
    version: str
    fingerprint: str
    """Fingerprint of the program's source."""
    cuts: tuple[int, ...] = ()
    """Earlier ends of a campaign that was extended; its blocks are as they were."""
    world: str = WorldKind.SINGLE
    """What kind of worlds it draws."""

    @property
    def seeds(self) -> int | None:
        return None if self.stop is None else self.stop - self.first

    def blocks(self) -> Iterator[Block]:
        number, first = 0, self.first
        while self.stop is None or first < self.stop:
            ends = [*self.cuts] if self.stop is None else [*self.cuts, self.stop]
            stop = min([first + BLOCK_SEEDS, *(end for end in ends if end > first)])
            yield Block(number, first, stop, self.variant, self.world)
            number, first = number + 1, stop


def parse_seeds(text: str) -> tuple[int, int]:
    """``N`` or ``A:B``, as first seed and the one behind the last."""
    found = number_range(text)
    if found is None:
        raise ConfigError(f"--seeds {text}: write a count (2000), or first:behind-last (2000:4000)")
    return found


@dataclass(slots=True)
class Campaign:
    plan: Plan
    folder: Path | None
    """Folder of the state file."""
    tally: Tally = field(default_factory=Tally)
    done: set[int] = field(default_factory=set)
    """Blocks behind ``next`` that are done already."""
    next: int = 0
    """All blocks before this one are done."""
    interrupted: str = ""
    """Why it stopped before its end; empty: it did not."""
    at_once: bool = False
    """Nobody waits for anything any more."""
    under_way: int = 0
    """Blocks that were handed out and are not done."""
    differing: dict[int, str] = field(default_factory=dict)
    """Failing seeds that did otherwise when they were run again, and what."""
    _written_at: float = 0.0

    @property
    def finished(self) -> bool:
        return self.plan.seeds is not None and self.tally.seeds == self.plan.seeds

    @property
    def by_signal(self) -> bool:
        return self.interrupted == STOPPED

    def run(self, engine: Engine, *, minutes: float | None, progress: Callable[[Tally], None]) -> None:
        """Run what is not done yet; ``progress`` is told after each block."""
        until = None if minutes is None else time.monotonic() + 60 * minutes

        def left(stop: Stop) -> Iterator[Block]:
            for block in self.plan.blocks():
                if block.number < self.next or block.number in self.done:
                    continue
                if stop.requested:
                    self.interrupted = STOPPED
                    return
                if until is not None and time.monotonic() >= until:
                    self.interrupted = TIME_IS_UP
                    return
                self.under_way += 1
                yield block

        with stopping_in_order(lambda: self.under_way) as stop:
            try:
                with closing(engine.outcomes(run_block, left(stop))) as outcomes:
                    for block, tally in outcomes:
                        self.under_way -= 1
                        self._account(block, tally)
                        progress(self.tally)
            except KeyboardInterrupt:
                self.interrupted, self.at_once = STOPPED, True
            except WorkerDied as died:  # a signal may have been meant for the whole process group
                self.interrupted = STOPPED if stop.requested else str(died)
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


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of a campaign; None: nothing."""

    version: str
    fingerprint: str
    seeds: tuple[int, int | None] | None = None
    variant: str | None = None
    world: str | None = None


def resume_campaign(folder: Path, asked: Asked) -> Campaign:
    """The one whose state is in ``folder``, which may get a later end. Raises ``ConfigError``."""
    path = folder / STATE_NAME
    if not path.exists():
        raise ConfigError(f"--resume: there is no campaign in {folder} ({STATE_NAME} is missing)")
    found = _read(path)
    plan = found.plan
    if asked.variant is not None and asked.variant != plan.variant:
        raise _another(folder, f"--with is {asked.variant}, was {plan.variant or 'not given'}")
    if asked.world is not None and asked.world != plan.world:
        raise _another(folder, f"--world is {asked.world}, was {plan.world}")
    if (asked.version, asked.fingerprint) != (plan.version, plan.fingerprint):
        raise _another(folder, "the program has changed")
    if asked.seeds is None or asked.seeds == (plan.first, plan.stop):
        return found
    first, stop = asked.seeds
    said, was = (f"{plan.first}:{'' if end is None else end}" for end in (stop, plan.stop))
    if first != plan.first:
        raise _another(folder, f"--seeds begins at {first}, began at {plan.first}")
    handed_out = max(found.done, default=found.next - 1) + 1
    begun = max(
        (block.stop for block, _ in zip(plan.blocks(), range(handed_out), strict=False)), default=first
    )
    if stop is not None and stop < (begun if plan.stop is None else plan.stop):
        raise _another(folder, f"--seeds is {said}, was {was}; --resume can extend it, not shorten it")
    cuts = plan.cuts if plan.stop is None else (*plan.cuts, plan.stop)
    found.plan = replace(plan, stop=stop, cuts=cuts)
    return found


def _another(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"--resume: the campaign in {folder} is another one: {why}. Begin anew in another folder"
    )


def _read(path: Path) -> Campaign:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ConfigError(f"{path}: format {state['format']}, expected {FORMAT}; begin anew with --anew")
        return Campaign(
            plan=Plan(**state["plan"] | {"cuts": tuple(state["plan"].get("cuts", ()))}),
            folder=path.parent,
            tally=Tally.from_record(state["tally"]),
            done=set(state["done"]),
            next=int(state["next"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error!r}): there is nothing to go on with; begin anew with --anew"
        ) from None


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing, whenever the machine stops."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
