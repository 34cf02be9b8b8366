"""The event log of a run: what it depended on, what broke, and what happened, event by event.

JSON lines. The first is a header; with it alone the run can be made again, since it holds the whole
configuration and the fate of every frame, or message, that did not pass unharmed. Each further line is one
record of :class:`~inaproto.sim.frames.recorder.Recorder`, or of :class:`WordRecorder` in worlds of words,
the last one that of the event at which the run ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from inaproto.errors import ConfigError, DecodeError
from inaproto.sim.campaign.worlds import any_kind_of, config_from
from inaproto.sim.frames.draw.swarm import WorldConfig
from inaproto.sim.frames.draw.topology import SWITCH_NODE
from inaproto.sim.frames.recorder import Record, say_fate, say_frame, say_time
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.violated import Violation
from inaproto.sim.kernel.world import RunResult

FORMAT: Final = 1
_LINES_MAX: Final = 5
"""Frames of one event that are told, beside those to which something happened."""
_LAYER: Final = "event log"
_REMEDY: Final = "make it again with: inaproto soak [--world WORLD] --seed N --log FILE"
_FATE_FIELDS: Final = {name: type(value) for name, value in Fate()._asdict().items()}


class DamagedLog(DecodeError):
    """The lines are what counts, so the message names these and no byte."""

    def __init__(self, reason: str) -> None:
        super().__init__(_LAYER, reason)

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Program:
    """What made a log."""

    version: str
    commit: str | None = None
    """Commit of the source, where that is known."""
    variant: str | None = None
    """``MODULE:FUNCTION`` that was installed during the run, if any (see ``inaproto replay --with``)."""


class WordRecorder:
    """Keeps one record for each event of a world of words, with the messages that it sent."""

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
class Log:
    program: Program
    config: Any
    """A ``WorldConfig`` or a ``WordsConfig``."""
    fates: LinkFates
    violation: Violation | None
    digest: str
    steps: Mapping[str, int]
    records: list[Record]

    @classmethod
    def of(cls, result: RunResult[Any], records: list[Record], program: Program) -> Log:
        """The log of a run that ``records`` tells."""
        return cls(
            program=program,
            config=result.config,
            fates=result.fates,
            violation=result.violation,
            digest=result.digest,
            steps=asdict(result.steps),
            records=records,
        )

    @property
    def of_frames(self) -> bool:
        return isinstance(self.config, WorldConfig)

    def header(self) -> Record:
        """As the first line has it; worlds of words are named there."""
        return {
            "format": FORMAT,
            **({} if self.of_frames else {"world": str(any_kind_of(self.config))}),
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


def fates_record(fates: LinkFates) -> Record:
    """As a header has them."""
    return {
        link: {str(number): list(fate) for number, fate in sorted(found.items())}
        for link, found in sorted(fates.items())
    }


def write_lines(path: Path, lines: Iterable[Record]) -> None:
    """All of them, or no file."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_log(path: Path) -> Log:
    """Raises ``ConfigError`` (no such log, or of another format) or ``DamagedLog``."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"event log {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DamagedLog(f"{path} is not UTF-8 text (byte {error.start}); {_REMEDY}") from None
    if not text:
        raise DamagedLog(f"{path} is empty; {_REMEDY}")
    records = [_record(line, number, path) for number, line in enumerate(text.splitlines(), 1)]
    header, events = records[0], records[1:]
    if "format" not in header:
        raise DamagedLog(f"{path}: line 1 is not the header of an event log; {_REMEDY}")
    if header["format"] != FORMAT:
        raise ConfigError(
            f"event log {path}: format {header['format']!r}; this version of inaproto reads format {FORMAT}"
        )
    log = _decoded(header, events, path)
    for index, event in enumerate(events, 1):
        if event.get("n") != index:
            raise DamagedLog(f"{path}: line {index + 1} is event {event.get('n')}, expected {index}")
    if len(events) != header.get("events"):
        raise DamagedLog(
            f"{path}: {len(events)} events, its header says {header.get('events')}; the file is cut off"
        )
    return log


def _record(line: str, number: int, path: Path) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DamagedLog(f"{path}: line {number} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DamagedLog(f"{path}: line {number} is not a JSON object")
    return record


def _decoded(header: Record, events: list[Record], path: Path) -> Log:
    try:
        return Log(
            program=Program(**header["program"]),
            config=config_from(header.get("world"), header["config"]),
            fates={
                str(link): {int(number): _fate(fields) for number, fields in fates.items()}
                for link, fates in header["fates"].items()
            },
            violation=None if header["violation"] is None else Violation(**header["violation"]),
            digest=str(header["digest"]),
            steps={str(name): int(count) for name, count in header["steps"].items()},
            records=events,
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        said = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise DamagedLog(f"{path}: its header is damaged: {said}") from None


def _fate(fields: Any) -> Fate:
    if len(fields) != len(_FATE_FIELDS):
        raise ValueError(f"fate {fields}: it has {len(_FATE_FIELDS)} fields: {', '.join(_FATE_FIELDS)}")
    fate = Fate(*fields)
    for (name, kind), value in zip(_FATE_FIELDS.items(), fate, strict=True):
        if type(value) is not kind:
            raise ValueError(f"fate {fields}: {name} is not {kind.__name__}")
    return fate


# --- for people


def say_node(record: Record) -> str:
    """Where it was; a world of several switches has their names in its records."""
    if isinstance(record["node"], str):
        return record["node"]
    if record["node"] == SWITCH_NODE:
        return str(record.get("name", "switch"))
    return str(record.get("name", f"host{record['node']}"))


def say_record(record: Record) -> list[str]:
    """An event in words; first what happened, then what followed from it, indented."""
    if isinstance(record["node"], str):
        return _say_words(record)
    where = f"event {record['n']} at {say_time(record['at'])}, {say_node(record)}:"
    frames = [say_frame(frame) for frame in record.get("frames", [])]
    if len(frames) == 1:
        lines = [f"{where} takes in {frames[0]}"]
    elif frames:
        lines = [f"{where} takes in {len(frames)} frames", *_some([f"    {frame}" for frame in frames])]
    else:
        is_numbered = record["kind"] in ("done", "failed")
        lines = [f"{where} {record['kind']}" + (f" {record['detail']}" if is_numbered else "")]
    lines += [f"    {said['text']}" for said in record.get("said", [])]
    sends = []
    for send in record.get("sends", []):
        fate = f"lost: {send['lost']}" if "lost" in send else send.get("fate")
        sends.append(f"    {send['link']}: {say_frame(send['what'])}" + (f"  [{fate}]" if fate else ""))
    return lines + _some(sends)


def _say_words(record: Record) -> list[str]:
    """An event of a world of words."""
    detail = f" {record['detail']}" if record["detail"] else ""
    lines = [f"event {record['n']} at {say_time(record['at'])}, {record['node']}: {record['kind']}{detail}"]
    for send in record.get("sends", []):
        fate = f"  [{send['fate']}]" if "fate" in send else ""
        lines.append(f"    {send['path']}: {send['what']}{fate}")
    return lines


def _some(lines: list[str]) -> list[str]:
    """The first few, and those to which something happened."""
    if len(lines) <= _LINES_MAX:
        return lines
    told = lines[: _LINES_MAX - 1] + [line for line in lines[_LINES_MAX - 1 :] if line.endswith("]")]
    return told if len(told) == len(lines) else [*told, f"    and {len(lines) - len(told)} more"]
