"""A shard on disk: a snapshot and the log of what came after it. A crash loses nothing that was acknowledged.

``snapshot-N`` has one entry, the state; ``log-N`` has the changes since, in order. A new snapshot
is written beside, renamed when it is on disk, and its empty log made before anything is
acknowledged by it; then the old pair goes. So there is at every moment one whole pair on disk, and
the newest snapshot is the one to begin with.

Invariants: ``append`` returns when its entries are on disk; a torn end is cut off before anything is
appended; after a call that failed nothing more is written, because what is on disk then is not known before
it is read. Calls wait for the disk: they are for a thread of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from inaproto.daemon.overlay.files import Files
from inaproto.errors import ConfigError, DecodeError, FabricError, LocalMisuse
from inaproto.wire.array_frames import Frame, FrameDecoder
from inaproto.wire.log_entries import decode_entries, encode_entry

LOG_BYTES_MIN: Final = 64 << 20
"""A log grows to this, or to as many times its snapshot:"""
LOG_SNAPSHOTS: Final = 4
_FILE: Final = re.compile(r"(snapshot|log)-([0-9]{1,18})")
_PAYLOAD_BYTES_MAX: Final = 1 << 62

Body = Sequence[memoryview]
"""Parts of a frame."""


class Found(NamedTuple):
    snapshot: Frame | None
    changes: list[Frame]
    torn_bytes: int
    """That were cut off at the end of the log."""


class DurableLog:
    """Of one shard. Raises ``ConfigError`` where the files are damaged, not ours, or another process's."""

    def __init__(
        self, directory: Path, *, files: Files | None = None, log_bytes_min: int = LOG_BYTES_MIN
    ) -> None:
        self._files = files or Files(directory)
        self._log_bytes_min = log_bytes_min
        self._fd = -1
        self._lost = ""
        """Why nothing more is written."""
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
        if any(number > self._number for number in numbers):
            raise DecodeError("store", f"log-{max(numbers)} has lost its snapshot")
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
        """Returns when they are on disk. Raises ``FabricError``: whether they are is then not known."""
        self._require_usable()
        try:
            parts: list[memoryview] = []
            for body in bodies:
                parts += encode_entry(body, self._bytes)
            self._files.append(self._fd, parts)
            self._files.sync(self._fd)
            self._bytes += sum(part.nbytes for part in parts)
        except OSError as error:
            raise self._failed("append to", error) from None

    def snapshot(self, body: Body) -> None:
        """The state after all that was appended; the log is empty then. Raises ``FabricError``."""
        self._require_usable()
        number = self._number + 1
        name = f"snapshot-{number}"
        try:
            parts = encode_entry(body, 0)
            fd = self._files.open(f"{name}.new", 0)
            try:
                self._files.append(fd, parts)
                self._files.sync(fd)
            finally:
                os.close(fd)
            self._files.rename(f"{name}.new", name)
            self._files.sync_names()
            new = self._files.open(f"log-{number}", 0)
            os.close(self._fd)
            self._fd, self._number, self._bytes = new, number, 0
            self._snapshot_bytes = sum(part.nbytes for part in parts)
            self._files.sync(new)
            self._files.sync_names()
            self._remove_old()
        except OSError as error:
            raise self._failed("write a snapshot to", error) from None

    def _remove_old(self) -> None:
        """What a newer snapshot has replaced, and what was never finished."""
        for name in self._files.names():
            match = _FILE.fullmatch(name)
            if match is None or int(match[2]) < self._number:
                self._files.remove(name)

    def _require_usable(self) -> None:
        if self._lost:
            raise LocalMisuse(self._lost)

    def _failed(self, what: str, error: OSError) -> FabricError:
        where = str(self._files.directory)
        self._lost = f"the store in {where} has failed: {error.strerror}"
        return FabricError(what, where, "writing", str(error.strerror), retryable=False)

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
