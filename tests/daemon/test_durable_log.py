"""A shard on disk: whatever moment a process or the power ends at, nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inaproto.daemon.models.store.durable_log import DurableLog
from inaproto.daemon.models.store.files import Files
from inaproto.errors import ConfigError, FabricError, LocalMisuse
from inaproto.wire.control import encode_control
from inaproto.wire.messages.array_frames import encode_frame


def body(number: int) -> list[memoryview]:
    return encode_frame(encode_control("change", number), [memoryview(bytes([number % 251]) * (number % 5))])


@dataclass
class Disk:
    """What is where when the power goes: contents as of the last sync, and names as of theirs."""

    written: dict[int, bytes] = field(default_factory=dict)
    synced: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    synced_names: dict[str, int] = field(default_factory=dict)

    def after_a_power_cut(self) -> list[dict[str, bytes]]:
        """Names are all there or as they were synced; what was written since is there up to any byte."""
        found = []
        for names in (self.names, self.synced_names):
            cuts: list[dict[str, bytes]] = [{}]
            for name, file in names.items():
                whole, kept = self.written.get(file, b""), self.synced.get(file, b"")
                if whole[: len(kept)] != kept:
                    ends = [whole, kept]
                else:
                    ends = [whole[:end] for end in range(len(kept), len(whole) + 1)]
                cuts = [cut | {name: data} for cut in cuts for data in ends]
            found += cuts
        return found


class Watched(Files):
    """The real files, each step told to ``moments``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.disk = Disk()
        self.moments: list[list[dict[str, bytes]]] = []
        self._of: dict[int, int] = {}
        self._files = 0

    def _note(self) -> None:
        self.moments.append(self.disk.after_a_power_cut())

    def open(self, name: str, end: int) -> int:
        fd = super().open(name, end)
        if name not in self.disk.names:
            self._files += 1
            self.disk.names[name] = self._files
        number = self._of[fd] = self.disk.names[name]
        self.disk.written[number] = self.disk.written.get(number, b"")[:end]
        self._note()
        return fd

    def append(self, fd: int, parts: Sequence[memoryview]) -> None:
        super().append(fd, parts)
        self.disk.written[self._of[fd]] += b"".join(parts)
        self._note()

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.disk.synced[self._of[fd]] = self.disk.written[self._of[fd]]
        self._note()

    def sync_names(self) -> None:
        super().sync_names()
        self.disk.synced_names = dict(self.disk.names)
        self._note()

    def rename(self, name: str, to: str) -> None:
        super().rename(name, to)
        self.disk.names[to] = self.disk.names.pop(name)
        self._note()

    def remove(self, name: str) -> None:
        super().remove(name)
        self.disk.names.pop(name)
        self._note()


def numbers(log: DurableLog) -> tuple[int, list[int]]:
    snapshot = log.found.snapshot
    return 0 if snapshot is None else snapshot.record["id"], [one.record["id"] for one in log.found.changes]


def test_what_was_appended_is_found_again(tmp_path: Path) -> None:
    log = DurableLog(tmp_path / "shard")
    assert numbers(log) == (0, [])
    log.append([body(1), body(2)])
    log.append([body(3)])
    log.close()
    log = DurableLog(tmp_path / "shard")
    assert numbers(log) == (0, [1, 2, 3])
    assert [bytes(one.payload) for one in log.found.changes] == [b"\1", b"\2\2", b"\3\3\3"]
    log.append([body(4)])
    log.snapshot(body(100))
    log.append([body(5)])
    log.close()
    log = DurableLog(tmp_path / "shard")
    assert numbers(log) == (100, [5])
    assert log.number == 1
    log.close()
    assert sorted(os.listdir(tmp_path / "shard")) == ["log-1", "snapshot-1"]


def test_no_power_cut_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """At every step of a life with two snapshots, the files cut at every byte that was not synced."""
    files = Watched(tmp_path / "shard")
    log = DurableLog(tmp_path / "shard", files=files)
    acknowledged: list[tuple[int, int]] = []
    """After so many moments, all changes up to this one."""
    last = 0
    for batch in ([1], [2, 3], "snapshot", [4], "snapshot", [5]):
        if batch == "snapshot":
            log.snapshot(body(100 + last))
        else:
            log.append([body(int(number)) for number in batch])
            last = int(batch[-1])
            acknowledged.append((len(files.moments), last))
    log.close()
    cases = 0
    seen: set[tuple[int, tuple[tuple[str, bytes], ...]]] = set()
    for moment, disks in enumerate(files.moments):
        promised = max((up_to for at, up_to in acknowledged if at <= moment + 1), default=0)
        for disk in disks:
            if (promised, tuple(disk.items())) in seen:
                continue
            seen.add((promised, tuple(disk.items())))
            directory = tmp_path / f"{moment}-{cases}"
            directory.mkdir()
            for name, data in disk.items():
                (directory / name).write_bytes(data)
            found = DurableLog(directory)
            snapshot, changes = numbers(found)
            first = max(0, snapshot - 100)
            assert changes == list(range(first + 1, first + 1 + len(changes)))
            assert first + len(changes) >= promised
            found.close()
            if cases % 8 == 0:  # and it goes on
                found = DurableLog(directory)
                found.append([body(50)])
                found.close()
                again = DurableLog(directory)
                assert numbers(again) == (snapshot, [*changes, 50])
                again.close()
            shutil.rmtree(directory)
            cases += 1
    assert cases > 300


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    log = DurableLog(tmp_path / "shard")
    log.append([body(1)])
    log.append([body(2)])
    log.close()
    path = tmp_path / "shard" / "log-0"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"the file is damaged.*restore it from a copy"):
        DurableLog(tmp_path / "shard")


@pytest.mark.parametrize("cut", [0, 7, 40])
def test_a_snapshot_that_is_cut_is_refused(tmp_path: Path, cut: int) -> None:
    log = DurableLog(tmp_path / "shard")
    log.snapshot(body(9))
    log.close()
    path = tmp_path / "shard" / "snapshot-1"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ConfigError, match="snapshot-1 is damaged"):
        DurableLog(tmp_path / "shard")


def test_a_log_without_its_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log-3").write_bytes(b"1234")
    with pytest.raises(ConfigError, match="log-3 has lost its snapshot"):
        DurableLog(tmp_path)


def test_a_snapshot_without_its_log_is_refused(tmp_path: Path) -> None:
    """What is missing was promised: going on would take it back."""
    log = DurableLog(tmp_path)
    log.snapshot(body(9))
    log.append([body(1)])
    log.close()
    (tmp_path / "log-1").unlink()
    with pytest.raises(ConfigError, match="snapshot-1 has lost its log"):
        DurableLog(tmp_path)


def test_a_directory_that_was_made_is_in_its_parent_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def watched(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    DurableLog(tmp_path / "store" / "m-0").close()
    assert {str(tmp_path), str(tmp_path / "store")} <= set(synced)


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(ConfigError, match=r"thesis\.tex is no file of a shard"):
        DurableLog(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "chapter 1"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    log = DurableLog(tmp_path / "shard")
    with pytest.raises(ConfigError, match="another process uses"):
        DurableLog(tmp_path / "shard")
    log.close()
    DurableLog(tmp_path / "shard").close()


class Failing(Files):
    """A disk that fails at one step, with one error, until it is ``number`` 0 again."""

    number = 0
    step = "sync"

    def _at(self, step: str) -> None:
        if self.number and self.step == step:
            raise OSError(self.number, os.strerror(self.number))

    def sync(self, fd: int) -> None:
        self._at("sync")
        super().sync(fd)

    def append(self, fd: int, parts: Sequence[memoryview]) -> None:
        if self.number and self.step == "append":
            super().append(fd, [parts[0][:5]])
        self._at("append")
        super().append(fd, parts)

    def open(self, name: str, end: int) -> int:
        self._at("open")
        return super().open(name, end)

    def sync_names(self) -> None:
        self._at("sync_names")
        super().sync_names()


def test_after_a_failure_nothing_more_is_written(tmp_path: Path) -> None:
    files = Failing(tmp_path)
    log = DurableLog(tmp_path, files=files)
    log.append([body(1)])
    files.number = errno.EIO
    with pytest.raises(FabricError, match="Input/output error"):
        log.append([body(2)])
    files.number = 0
    again: Any
    for again in (lambda: log.append([body(3)]), lambda: log.snapshot(body(4))):
        with pytest.raises(LocalMisuse, match="has failed: Input/output error"):
            again()
    log.close()


@pytest.mark.parametrize("step", ["append", "sync"])
def test_a_disk_that_was_full_goes_on_and_has_each_entry_once(tmp_path: Path, step: str) -> None:
    files = Failing(tmp_path)
    log = DurableLog(tmp_path, files=files)
    log.append([body(1)])
    files.number, files.step = errno.ENOSPC, step
    for _ in range(2):
        with pytest.raises(FabricError, match="No space left on device") as caught:
            log.append([body(2), body(3)])
        assert caught.value.retryable
    files.number = 0
    log.append([body(2), body(3)])
    log.append([body(4)])
    log.close()
    log = DurableLog(tmp_path)
    assert numbers(log) == (0, [1, 2, 3, 4])
    log.close()


@pytest.mark.parametrize("step", ["append", "sync", "open", "sync_names"])
def test_a_snapshot_for_which_there_is_no_space_leaves_the_log_as_it_was(tmp_path: Path, step: str) -> None:
    files = Failing(tmp_path)
    log = DurableLog(tmp_path, files=files)
    log.append([body(1)])
    files.number, files.step = errno.ENOSPC, step
    with pytest.raises(FabricError, match="No space left on device"):
        log.snapshot(body(101))
    files.number = 0
    assert sorted(os.listdir(tmp_path)) == ["log-0"]
    log.append([body(2)])
    log.close()
    log = DurableLog(tmp_path)
    assert numbers(log) == (0, [1, 2])
    log.snapshot(body(102))
    log.append([body(3)])
    log.close()
    log = DurableLog(tmp_path)
    assert numbers(log) == (102, [3])
    log.close()


def test_no_file_may_grow_any_more(tmp_path: Path) -> None:
    """By a limit of the kernel's own: a part of the entry is written, and then cut off."""
    log = DurableLog(tmp_path)
    log.append([body(1)])
    end = (tmp_path / "log-0").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (end + 20, limits[1]))
    try:
        with pytest.raises(FabricError, match="File too large"):
            log.append([body(200)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.append([body(2)])
    log.close()
    log = DurableLog(tmp_path)
    assert numbers(log) == (0, [1, 2])
    log.close()


def test_a_log_asks_for_a_snapshot_when_it_has_grown(tmp_path: Path) -> None:
    log = DurableLog(tmp_path, log_bytes_min=200)
    made = 0
    for number in range(1, 40):
        log.append([body(number)])
        if log.wants_snapshot:
            log.snapshot(body(number))
            made += 1
        assert log.log_bytes <= 400
    assert made > 4
    log.close()
