"""What inaproto did for this process's groups, and what went elsewhere and why: for people and for tests."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass, field
from typing import Final

GROUPS_MAX: Final = 1024
"""Groups that are remembered; the oldest go first."""

log = logging.getLogger("inaproto.torch")


@dataclass(slots=True)
class GroupRecord:
    """Counts of one group; written by its engine and by the kernels."""

    name: str
    rank: int
    size: int
    backend: str
    carrier: str = ""
    job: str = ""
    why: str = ""
    all_reduces: int = 0
    nbytes: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One process group of this process that inaproto serves, or was to serve."""

    name: str
    rank: int
    size: int
    backend: str
    """The name that the script gave it."""
    carrier: str
    """Who carries its all-reduces: ``inaproto``, ``gloo``, or nobody yet (empty), before its first."""
    job: str
    """Its job at the host daemon."""
    why: str
    """Why ``carrier`` is not inaproto."""
    all_reduces: int
    """Those that ``carrier`` was given."""
    nbytes: int
    """Bytes of their tensors."""
    elsewhere: dict[str, int]
    """All-reduces that torch's own backend did, as inaproto does not do such: reason, how many."""


@dataclass(frozen=True, slots=True)
class TorchStatus:
    groups: tuple[GroupStatus, ...]


_records: list[GroupRecord] = []
_lock = threading.Lock()


def record_of(name: str, rank: int, size: int, backend: str) -> GroupRecord:
    """A new record, which :func:`status` shows from now on."""
    record = GroupRecord(name, rank, size, backend)
    with _lock:
        _records.append(record)
        del _records[:-GROUPS_MAX]
    return record


def status() -> TorchStatus:
    """Which groups of this process inaproto serves, what it did for them, and what went elsewhere and why."""
    with _lock:
        return TorchStatus(
            tuple(
                GroupStatus(
                    record.name,
                    record.rank,
                    record.size,
                    record.backend,
                    record.carrier,
                    record.job,
                    record.why,
                    record.all_reduces,
                    record.nbytes,
                    dict(record.elsewhere),
                )
                for record in _records
            )
        )


def went_elsewhere(record: GroupRecord, why: str) -> None:
    """Count an all-reduce that torch's own backend does; the first of its reason is a line of the log."""
    with _lock:
        count = record.elsewhere.get(why, 0)
        record.elsewhere[why] = count + 1
    if not count and record.rank == 0:
        say(f"{record.name}: all-reduces of this kind are torch's own: {why}")


def say(text: str, *, warns: bool = False) -> None:
    """Tell people: by the log where somebody reads it, else on stderr."""
    level = logging.WARNING if warns else logging.INFO
    if log.hasHandlers() and log.isEnabledFor(level):
        log.log(level, "%s", text)
    else:
        sys.stderr.write(f"inaproto: {text}\n")
