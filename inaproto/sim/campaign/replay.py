"""Runs a log again and says where the two runs part, if they do.

The run draws no weather: every frame has the fate that the log has for it. It is compared event by event,
so a run that ends otherwise is known by the first thing that it did otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from inaproto.core.switch.accelerator import Accelerator, AcceleratorConfig
from inaproto.errors import ConfigError
from inaproto.sim.campaign.log import Log, Program, WordRecorder, say_record
from inaproto.sim.campaign.worlds import WORDS, any_kind_of
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.draw.swarm import WorldConfig
from inaproto.sim.frames.recorder import Record, Recorder, say_time
from inaproto.sim.frames.world import World
from inaproto.sim.kernel.config import WordsConfig
from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.kernel.violated import Violation
from inaproto.sim.kernel.world import RunResult, SimulatedWorld


@dataclass(frozen=True, slots=True)
class Parts:
    """What worlds are built of beside their configuration; ``checkers`` makes fresh ones for each run.

    Both fields are of worlds of frames.
    """

    make_accelerator: Callable[[AcceleratorConfig], Accelerator] = Accelerator
    checkers: Callable[[], Sequence[Checker]] | None = None

    def run(self, config: WorldConfig | WordsConfig, fates: LinkFates | None = None) -> RunResult[Any]:
        """Run a world of any kind; ``fates``: those of a log, to be replayed."""
        return self.world(config, fates).run()

    def record(
        self, config: WorldConfig | WordsConfig, program: Program, fates: LinkFates | None = None
    ) -> Log:
        """Run it and keep the log."""
        recorder = Recorder() if isinstance(config, WorldConfig) else WordRecorder()
        return Log.of(self.world(config, fates, recorder).run(), recorder.records, program)

    def world(
        self, config: WorldConfig | WordsConfig, fates: LinkFates | None = None, recorder: Any = None
    ) -> SimulatedWorld:
        """A world of any kind, to be run once."""
        if isinstance(config, WordsConfig):
            return WORDS[any_kind_of(config)].world(config, fates=fates, recorder=recorder)
        checkers = None if self.checkers is None else self.checkers()
        return World(
            config,
            fates=fates,
            checkers=checkers,
            recorder=recorder,
            make_accelerator=self.make_accelerator,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """A log and the run that was made from it."""

    log: Log
    again: Log
    differs: int | None
    """Number of the first event that differs; None: every event is as in the log."""

    @property
    def same(self) -> bool:
        return self.differs is None and self.log.violation == self.again.violation

    def verdict(self) -> str:
        """For people."""
        was, now = self.log.violation, self.again.violation
        if self.same:
            if was is None:
                return f"passes as in the log: {len(self.log.records)} events, all the same"
            return f"fails at the same event {was.event}: {was.rule}"
        lines = []
        if was is None:
            lines.append("the log is of a run that passed;")
        else:
            lines.append(f"the log has: {_say(was)};")
        if now is None:
            lines.append("this run breaks no rule: the fault is gone, or lies in a variant (--with).")
        elif was is not None and (now.rule, now.event) == (was.rule, was.event):
            where = "" if self.differs is None else f", but the log differs at event {self.differs}"
            lines = [f"breaks the same rule at the same event {now.event}{where}: was it edited?"]
        elif was is not None and now.rule == was.rule:
            lines.append(f"this run breaks the same rule elsewhere: {_say(now)}.")
        else:
            lines.append(f"this run breaks another rule: {_say(now)}.")
        if self.differs is not None:
            lines += [f"The first event that differs is {self.differs}.", "  in the log:"]
            lines += _side(self.log.records, self.differs)
            lines += ["  now:", *_side(self.again.records, self.differs)]
        return "\n".join(lines)


def replay(log: Log, parts: Parts, program: Program) -> Replay:
    """``program`` is what runs it now. Raises ``ConfigError`` for a log whose world cannot be."""
    try:
        again = parts.record(log.config, program, log.fates)
    except Exception as error:  # a world that runs never raises, so it is the making of it that did
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"event log: no world can be as its header says ({said}): was it edited?"
        ) from error
    differs = None
    for number, (was, now) in enumerate(zip_longest(log.records, again.records), 1):
        if was != now:
            differs = number
            break
    return Replay(log, again, differs)


def _say(violation: Violation) -> str:
    return f"{violation.rule} at event {violation.event} ({say_time(violation.at_ns)}): {violation.evidence}"


def _side(records: list[Record], number: int) -> list[str]:
    if number > len(records):
        return [f"    nothing: it ended with event {len(records)}"]
    return [f"    {line}" for line in say_record(records[number - 1])]
