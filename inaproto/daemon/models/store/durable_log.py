"""A shard on disk: a snapshot and the log of what came after it. A crash loses nothing that was acknowledged.

``snapshot-N`` has one entry, the state; ``log-N`` has the changes since, in order. A new snapshot
is written beside, its empty log made, and then it is renamed, which makes the pair count; then the old pair
goes. So there is at every moment one whole pair on disk, and the newest snapshot is the one to begin with.

A disk that is full is a state, not an end: what was half written is cut off, and the call can be made again
when there is space. All other failures are final.

Invariants: ``append`` returns when its entries are on disk; a torn end, or that of a call that failed, is cut
off before anything is appended; after a failure that is final nothing more is written, because what is on
disk then is not known before it is read. Calls wait for the disk: they are for a thread of their own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from inaproto.daemon.models.store.files import Files
from inaproto.errors import ConfigError, DecodeError, FabricError, LocalMisuse
from inaproto.wire.files.log_entries import decode_entries, encode_entry
from inaproto.wire.messages.array_frames import Frame, FrameDecoder

LOG_BYTES_MIN: Final = 64 << 20
"""A log grows to this, or to as many times its snapshot:"""
LOG_SNAPSHOTS: Final = 4
_FILE: Final = re.compile(r"(snapshot|log)-([0-9]{1,18})")
_PAYLOAD_BYTES_MAX: Final = 1 << 62
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Body = Sequence[memoryview]
"""Parts of a frame."""


class Found(NamedTuple):
    snapshot: Frame | None
    changes: list[Frame]
    torn_bytes: int
    """Bytes that were cut off at the end of the log."""


class DurableLog:
    """Snapshot and log of one shard. Raises ``ConfigError`` where the files are damaged, not ours, or another
    process's."""

    def __init__(
        self, directory: Path, *, files: Files | None = None, log_bytes_min: int = LOG_BYTES_MIN
    ) -> None:
        self._files = files or Files(directory)
        self._log_bytes_min = log_bytes_min
        self._fd = -1
        self._lost = ""
        """Why nothing more is written."""
        self._has_rest = False
        """Whether there are bytes behind the last entry that counts, of a call that failed."""
        try:
            self.found = self._load()
        except (DecodeError, OSError) as error:
            self.close()
            text = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"store: {directory}: {text}; restore it from a copy, or begin anew with an empty directory"
            ) from None
        except BaseException:
            self.close()
            raise

    def _load(self) -> Found:
        numbers: dict[str, list[int]] = {"snapshot": [], "log": []}
        for name in self._files.names():
            if (match := _FILE.fullmatch(name)) is not None:
                numbers[match[1]].append(int(match[2]))
            elif not name.endswith(".new"):
                raise DecodeError("store", f"{name} is no file of a shard")
        self._number = max(numbers["snapshot"], default=0)
        self._snapshot_bytes = 0
        snapshot = None
        if numbers["snapshot"]:
            data = self._files.read(f"snapshot-{self._number}")
            entries = decode_entries(data)
            if len(entries.bodies) != 1 or entries.end != data.nbytes:
                raise DecodeError("store", f"snapshot-{self._number} is damaged")
            snapshot = _frame(entries.bodies[0])
            self._snapshot_bytes = data.nbytes
        changes, torn = self._load_log(numbers["log"])
        self._remove_old()
        return Found(snapshot, changes, torn)

    def _load_log(self, numbers: list[int]) -> tuple[list[Frame], int]:
        for number in numbers:  # an empty one was made for a snapshot that never came to count
            if number > self._number and self._files.read(f"log-{number}").nbytes:
                raise DecodeError("store", f"log-{number} has lost its snapshot")
        if self._number and not {self._number, self._number - 1} & set(numbers):
            raise DecodeError("store", f"snapshot-{self._number} has lost its log")
        name, changes, torn = self._log, list[Frame](), 0
        self._bytes = 0
        if self._number in numbers:
            data = self._files.read(name)
            entries = decode_entries(data)
            changes = [_frame(body) for body in entries.bodies]
            self._bytes, torn = entries.end, data.nbytes - entries.end
        self._fd = self._files.open(name, self._bytes)
        self._files.sync(self._fd)
        self._files.sync_names()
        return changes, torn

    @property
    def _log(self) -> str:
        return f"log-{self._number}"

    @property
    def wants_snapshot(self) -> bool:
        return self._bytes > max(self._log_bytes_min, LOG_SNAPSHOTS * self._snapshot_bytes)

    @property
    def log_bytes(self) -> int:
        return self._bytes

    @property
    def number(self) -> int:
        """Snapshots that were made in this directory."""
        return self._number

    def append(self, bodies: Sequence[Body]) -> None:
        """Returns when they are on disk. Raises ``FabricError``; where that is ``retryable`` nothing of them
        counts, and they may be appended again. Otherwise whether they are on disk is not known."""
        self._require_usable()
        try:
            if self._has_rest:
                os.ftruncate(self._fd, self._bytes)
                os.lseek(self._fd, self._bytes, os.SEEK_SET)
                self._files.sync(self._fd)
            self._has_rest = True
            parts: list[memoryview] = []
            for body in bodies:
                parts += encode_entry(body, self._bytes)
            self._files.append(self._fd, parts)
            self._files.sync(self._fd)
            self._has_rest = False
            self._bytes += sum(part.nbytes for part in parts)
        except OSError as error:
            raise self._failed("append to", error) from None

    def snapshot(self, body: Body) -> None:
        """The state after all that was appended; the log is empty then. Raises ``FabricError``; where that is
        ``retryable`` the log goes on as it was."""
        self._require_usable()
        number = self._number + 1
        name, new = f"snapshot-{number}", -1
        try:
            parts = encode_entry(body, 0)
            fd = self._files.open(f"{name}.new", 0)
            try:
                self._files.append(fd, parts)
                self._files.sync(fd)
            finally:
                os.close(fd)
            new = self._files.open(f"log-{number}", 0)
            self._files.sync(new)
            self._files.sync_names()
        except OSError as error:
            if new >= 0:
                os.close(new)
            failed = self._failed("write a snapshot to", error)
            for left in (f"{name}.new", f"log-{number}"):
                with suppress(OSError):
                    self._files.remove(left)
            raise failed from None
        try:
            self._files.rename(f"{name}.new", name)
            self._files.sync_names()
        except OSError as error:
            os.close(new)
            raise self._failed("write a snapshot to", error, is_final=True) from None
        os.close(self._fd)
        self._fd, self._number, self._bytes, self._has_rest = new, number, 0, False
        self._snapshot_bytes = sum(part.nbytes for part in parts)
        try:
            self._remove_old()
        except OSError as error:
            raise self._failed("clean up", error, is_final=True) from None

    def _remove_old(self) -> None:
        """What a newer snapshot has replaced, and what was never finished."""
        for name in self._files.names():
            match = _FILE.fullmatch(name)
            if match is None or int(match[2]) != self._number:
                self._files.remove(name)

    def _require_usable(self) -> None:
        if self._lost:
            raise LocalMisuse(self._lost)

    def _failed(self, what: str, error: OSError, *, is_final: bool = False) -> FabricError:
        where = str(self._files.directory)
        is_full = error.errno in _NO_SPACE and not is_final
        if not is_full:
            self._lost = f"the store in {where} has failed: {error.strerror}"
        return FabricError(what, where, "writing", str(error.strerror), retryable=is_full)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._files.close()


def _frame(body: memoryview) -> Frame:
    decoder = FrameDecoder(_PAYLOAD_BYTES_MAX)
    frames = decoder.feed(body)
    decoder.finish()
    if len(frames) != 1:
        raise DecodeError("store", f"an entry of {len(frames)} frames")
    return frames[0]


def read_store(directory: Path) -> Found:
    """What a store has, also while its server writes: nothing is locked, and nothing changed. Raises
    ``DecodeError`` and ``OSError``; ``FileNotFoundError`` also where a new snapshot came meanwhile."""
    found = [match for name in os.listdir(directory) if (match := _FILE.fullmatch(name)) is not None]
    number = max((int(match[2]) for match in found if match[1] == "snapshot"), default=0)
    if not number:
        return Found(None, [], 0)
    data = memoryview((directory / f"snapshot-{number}").read_bytes())
    whole = decode_entries(data)
    if len(whole.bodies) != 1 or whole.end != data.nbytes:
        raise DecodeError("store", f"snapshot-{number} is damaged")
    log = memoryview((directory / f"log-{number}").read_bytes())  # not mapped: it may be cut
    entries = decode_entries(log)
    return Found(_frame(whole.bodies[0]), [_frame(body) for body in entries.bodies], log.nbytes - entries.end)
