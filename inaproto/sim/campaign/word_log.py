"""The event log of a world of words: JSON lines, a header that holds all it depends on, then its events.

Control worlds have it, and overlay worlds (:mod:`inaproto.sim.campaign.word_worlds`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError
from inaproto.sim.campaign.word_worlds import WordsConfig, WordsResult, config_from, kind_of_words, world_of
from inaproto.sim.frames.recorder import Record, say_fate, say_time
from inaproto.sim.frames.runs.log import DamagedLog, Program, fates_record, write_lines
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.violated import Violation

FORMAT: Final = 1
WORLDS: Final = ("control", "trees", "overlay")
_FAULTS: Final = ("crashes", "clock jumps", "stands still", "is cut off")
_REMEDY: Final = "make it again with: inaproto soak --world WORLD --seed N --log FILE"


class ControlRecorder:
    """One record for each event, with the messages that it sent."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def event(self, number: int, at: int, node: str, kind: str, detail: str) -> None:
        self.records.append({"n": number, "at": at, "node": node, "kind": kind, "detail": detail})

    def sent(self, path: str, message: str, fate: Fate, lost: str) -> None:
        if not self.records:
            return
        said: Record = {"path": path, "what": message}
        befell = lost or say_fate(fate)
        if befell:
            said["fate"] = befell
        self.records[-1].setdefault("sends", []).append(said)


@dataclass(frozen=True, slots=True)
class ControlLog:
    program: Program
    config: WordsConfig
    fates: LinkFates
    violation: Violation | None
    digest: str
    steps: Mapping[str, int]
    records: list[Record]

    @classmethod
    def of_run(cls, config: WordsConfig, program: Program, fates: LinkFates | None = None) -> ControlLog:
        """Runs it and keeps what happened."""
        recorder = ControlRecorder()
        result = world_of(config, fates=fates, recorder=recorder).run()
        return cls.of(result, recorder.records, program)

    @classmethod
    def of(cls, result: WordsResult, records: list[Record], program: Program) -> ControlLog:
        return cls(
            program=program,
            config=result.config,
            fates=result.fates,
            violation=result.violation,
            digest=result.digest,
            steps=asdict(result.steps),
            records=records,
        )

    def header(self) -> Record:
        return {
            "format": FORMAT,
            "world": str(kind_of_words(self.config)),
            "program": asdict(self.program),
            "seed": self.config.seed,
            "config": self.config.as_record(),
            "fates": fates_record(self.fates),
            "violation": None if self.violation is None else asdict(self.violation),
            "digest": self.digest,
            "steps": dict(self.steps),
            "events": len(self.records),
        }

    def write(self, path: Path) -> None:
        write_lines(path, [self.header(), *self.records])


def is_control_log(path: Path) -> bool:
    """Whether the file's first line is the header of such a log."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(header, dict) and header.get("world") in WORLDS


def read_control_log(path: Path) -> ControlLog:
    """Raises ``ConfigError`` (another format) or ``DamagedLog``."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        header, records = lines[0], lines[1:]
        if header["format"] != FORMAT:
            raise ConfigError(f"event log {path}: format {header['format']!r}; expected {FORMAT}")
        if len(records) != header["events"]:
            raise DamagedLog(f"{path}: {len(records)} events, its header says {header['events']}; {_REMEDY}")
        return ControlLog(
            program=Program(**header["program"]),
            config=config_from(header["world"], header["config"]),
            fates={
                str(link): {int(number): Fate(*fields) for number, fields in fates.items()}
                for link, fates in header["fates"].items()
            },
            violation=None if header["violation"] is None else Violation(**header["violation"]),
            digest=str(header["digest"]),
            steps=dict(header["steps"]),
            records=records,
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"event log {path}: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DamagedLog(f"{path}: {error!r}; {_REMEDY}") from None


@dataclass(frozen=True, slots=True)
class ControlReplay:
    """A log, and the run that was made from it."""

    log: ControlLog
    again: ControlLog
    differs: int | None
    """The first event that differs; None: all are as in the log."""

    @property
    def same(self) -> bool:
        return self.differs is None and self.log.violation == self.again.violation

    def verdict(self) -> str:
        was, now = self.log.violation, self.again.violation
        if self.same:
            if was is None:
                return f"passes as in the log: {len(self.log.records)} events, all the same"
            return f"fails at the same event {was.event}: {was.rule}"
        lines = [f"the log has: {_say(was)};", f"this run: {_say(now)}."]
        if self.differs is not None:
            lines += [f"The first event that differs is {self.differs}.", "  in the log:"]
            lines += _side(self.log.records, self.differs)
            lines += ["  now:", *_side(self.again.records, self.differs)]
        return "\n".join(lines)


def replay_control(log: ControlLog, program: Program) -> ControlReplay:
    """Runs it again, with the fates that it has and no draw of weather."""
    again = ControlLog.of_run(log.config, program, log.fates)
    pairs = enumerate(zip_longest(log.records, again.records), 1)
    differs = next((number for number, (was, now) in pairs if was != now), None)
    return ControlReplay(log, again, differs)


def say_record(record: Record) -> list[str]:
    """An event in words, and below it what it sent."""
    detail = f" {record['detail']}" if record["detail"] else ""
    lines = [f"event {record['n']} at {say_time(record['at'])}, {record['node']}: {record['kind']}{detail}"]
    for send in record.get("sends", []):
        fate = f"  [{send['fate']}]" if "fate" in send else ""
        lines.append(f"    {send['path']}: {send['what']}{fate}")
    return lines


def _say(violation: Violation | None) -> str:
    if violation is None:
        return "no rule was broken"
    return f"{violation.rule} at event {violation.event} ({say_time(violation.at_ns)}): {violation.evidence}"


def _side(records: list[Record], number: int) -> list[str]:
    if number > len(records):
        return [f"    nothing: it ended with event {len(records)}"]
    return [f"    {line}" for line in say_record(records[number - 1])]


def say_failure(log: ControlLog, *, path: str | None = None, rerun: bool = True, last: int = 12) -> str:
    """What a person needs of a run that broke a rule: what, when, what befell it, the last events."""
    violation = log.violation
    if violation is None:
        return f"seed {log.config.seed}: no rule was broken in {len(log.records)} events"
    program = log.program
    variant = f" --with {program.variant}" if program.variant else ""
    lines = [
        f"seed {log.config.seed}: broken rule: {violation.rule}",
        f"  evidence  {violation.evidence}",
        f"  where     event {violation.event}, at {say_time(violation.at_ns)}, found by {violation.checker}",
        f"  program   inaproto {program.version}, commit {program.commit or 'unknown'}"
        + (f", with {program.variant}" if program.variant else ""),
        *_say_befell(log),
        f"  last {min(last, len(log.records))} events:",
    ]
    lines += [f"    {line}" for record in log.records[-last:] for line in say_record(record)]
    if rerun:
        lines.append(
            f"  rerun     inaproto soak --world {kind_of_words(log.config)} --seed {log.config.seed}{variant}"
        )
    if path is not None:
        lines.append(f"  replay    inaproto replay {path}{variant}")
    return "\n".join(lines)


def _say_befell(log: ControlLog, most: int = 12) -> list[str]:
    befell: list[tuple[int, str]] = []
    for record in log.records:
        if record["kind"] in _FAULTS or "partition" in record["kind"]:
            befell.append((record["at"], f"{record['node']} {record['kind']} {record['detail']}"))
        befell += [
            (record["at"], f"{send['path']}: {send['what']}  [{send['fate']}]")
            for send in record.get("sends", [])
            if "fate" in send
        ]
    if not befell:
        return ["  befell    no fault, and no message was hit"]
    said = f"the last {most} of {len(befell)}" if len(befell) > most else "all"
    lines = [f"  befell    {said} faults and messages that were hit:"]
    return lines + [f"    {say_time(at)}: {text}" for at, text in befell[-most:]]
