"""The journal of a host: what a successor of its daemon reads, whenever that was stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from inaproto.core.host import journal as layout
from inaproto.core.host.journal import Arena, Journal, Past, PrivateArena, read_journal
from inaproto.core.host.operation_queue import KeptResult
from inaproto.core.host.operations import Operation
from inaproto.daemon.host.shared_arena import SharedArena
from inaproto.errors import InvariantBroken, RankLost
from inaproto.units import OpIndex, RingId
from inaproto.wire import control
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import Join
from tests.unit.journal_scenario import (
    TENSOR_BYTES,
    Daemon,
    Processes,
    Stopped,
    Stores,
    begun,
    join,
    read,
)

WINDOW = 2
ARENAS: dict[str, Callable[[], Arena]] = {"private": PrivateArena, "shared": SharedArena}
ERROR = RankLost("rank 3 is lost")


@pytest.fixture(params=ARENAS)
def arena(request: pytest.FixtureRequest) -> Arena:
    return ARENAS[request.param]()


# --- what is read of what was written


def test_a_job_that_has_not_begun_leaves_nothing(arena: Arena) -> None:
    journal = Journal(arena, window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)
    assert not journal.has_begun
    journal.failed("rank_lost", "before it had begun")
    assert read(arena, WINDOW) is None


def test_what_is_written_is_read(arena: Arena) -> None:
    processes = Processes()
    daemon = Daemon(processes, arena, Stores(), WINDOW)
    for step in daemon.script():
        past = read(arena, WINDOW)
        if past is None:
            assert step == "restored"
            continue
        assert (past.joins, past.left, past.boot_id) == (tuple(processes.joins), daemon.left, daemon.boot_id)
        assert (past.window_messages, past.tensor_bytes) == (WINDOW, TENSOR_BYTES)
        assert (past.progress, past.torn) == (daemon.progress, None)
        if step == "ended":
            assert past.failure == ("", "")
            continue
        assert past.failure is None
        assert [its.serial for its, _ in past.kept] == [its.serial for its in daemon.kept]
        for (found, data), kept in zip(past.kept, daemon.kept, strict=True):
            assert (found.operation, found.offset, found.nbytes) == kept[1:2] + kept[3:5]
            assert (found.is_last, data) == (kept.is_last, processes.result(found.serial))
        if past.progress:
            operation, offset, nbytes = processes.cuts[past.progress - 1]
            is_last = offset + nbytes == operation.nbytes
            assert past.next_index == operation.index + is_last
            assert past.results == (0 if is_last else offset // TENSOR_BYTES + 1)
            assert past.path == "switch"
        else:
            assert (past.next_index, past.results) == (0, 0)


@pytest.mark.parametrize("path", layout.PATHS)
def test_the_path_of_the_last_result_is_told(path: Any) -> None:
    arena = PrivateArena()
    journal = begun(arena)
    journal.taking(Operation(OpIndex(0), Dtype.F16, Op.MAX, 4, 9), 0, 4, 0, path)
    journal.taken()
    past = read(arena, WINDOW)
    assert past is not None
    assert past.path == path
    assert past.kept[0][0].operation == Operation(OpIndex(0), Dtype.F16, Op.MAX, 4, 9)


def test_a_job_that_has_failed_says_why_first_and_last() -> None:
    arena = PrivateArena()
    journal = begun(arena)
    journal.failed("", "")  # its links are given up before its ranks are told
    journal.failed("rank_lost", "rank 1 is lost" * 9999)
    journal.failed("", "")
    journal.say([join(0)], {0: 0}, "boot")  # a rank leaves that has not heard of it yet
    past = read(arena, WINDOW)
    assert past is not None
    assert past.failure == ("rank_lost", ("rank 1 is lost" * 9999)[: layout.WORDS.bytes_max])
    assert past.kept == ()


def test_a_thousand_ranks_with_long_names_fit() -> None:
    arena = PrivateArena()
    journal = Journal(arena, window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)
    joins = [
        Join(
            id=n, job="j" * 128, rank=n, size=2000, key="k" * 256, pid=1 << 31, life="l" * 256, path="overlay"
        )
        for n in range(1024)
    ]
    journal.say(joins, dict.fromkeys(range(1024), (1 << 31) - 1), "b" * 256)
    journal.failed("x" * 128, "y" * 99_999)
    past = read(arena, WINDOW)
    assert past is not None
    assert past.joins == tuple(joins)


@pytest.mark.parametrize(
    ("said", "read_as"),
    [("é" * 9999, "é" * 4096), ("no file \udcff", "no file ?"), ("x" * 8192, "x" * 8192)],
    ids=["long", "no Unicode", "as long as may be"],
)
def test_an_error_in_any_words_is_told_as_on_a_connection(said: str, read_as: str) -> None:
    arena = PrivateArena()
    begun(arena).failed("rank_lost", said)
    past = read(arena, WINDOW)
    assert past is not None
    assert past.failure == ("rank_lost", read_as)


def test_what_is_kept_must_have_been_taken() -> None:
    journal = begun(PrivateArena())
    kept = KeptResult(0, Operation(OpIndex(0), Dtype.I32, Op.SUM, 4, 0), True, 0, 4, RingId(1), 0)
    with pytest.raises(InvariantBroken, match="result 0 is kept, and the journal has -1 there"):
        journal.keep([kept], [bytes(4)])


def test_facts_have_their_room_and_no_more() -> None:
    journal = Journal(PrivateArena(), window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)
    journal.say([join(0)], {}, "b" * (1 << 16))
    most = layout.FACTS_BYTES_MAX - len(msgpack.packb(journal._facts)) + (1 << 16)
    journal.say([join(0)], {}, "b" * most)
    with pytest.raises(InvariantBroken, match=f"^{layout.FACTS_BYTES_MAX + 1} bytes of facts do not fit"):
        journal.say([join(0)], {}, "b" * (most + 1))


@pytest.mark.parametrize("tensor_bytes", [12, 4 << 20], ids=["no words", "longer than facts"])
def test_messages_of_any_length_are_kept_beside_the_facts(tensor_bytes: int) -> None:
    arena, results = PrivateArena(), []
    journal = Journal(arena, window_messages=3, tensor_bytes=tensor_bytes)
    journal.say([join(0)], {}, "boot")
    slots = arena.allocate(3 * tensor_bytes)
    operation = Operation(OpIndex(0), Dtype.I32, Op.SUM, 3 * tensor_bytes, 0)
    for serial in range(3):
        at = serial * tensor_bytes
        journal.taking(operation, at, tensor_bytes, slots.at + at, "switch")
        journal.taken()
        results.append(KeptResult(serial, operation, serial == 2, at, tensor_bytes, RingId(1), serial))
    journal.keep(results, [bytes([serial]) * tensor_bytes for serial in range(3)])
    slots.free()
    past = read_journal(arena, window_messages=3, tensor_bytes=tensor_bytes)
    assert [data == bytes([serial]) * tensor_bytes for serial, (_, data) in enumerate(past.kept)] == [
        True
    ] * 3
    assert journal.nbytes == len(arena.areas[0].view)


@pytest.mark.parametrize("window", [1, 2, 43, 44])
def test_no_part_of_a_journal_lies_over_another(window: int) -> None:
    """With a window of 43 the facts end a word behind the beginning of a page."""
    it, slots = layout._Layout(window, TENSOR_BYTES), window + 2
    assert it.operations_at >= layout._FACTS_AT + 8
    assert it.records_at >= it.operations_at + slots * layout._OPERATION.size
    assert it.facts_at >= it.records_at + slots * layout._RECORD.size
    assert it.kept_at >= it.facts_at + 2 * (8 + layout.FACTS_BYTES_MAX)


def test_a_daemon_that_speaks_only_newer_versions_reads_who_has_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon before it spoke them, too."""
    newer, arena = control.NEWEST + 1, PrivateArena()
    monkeypatch.setattr(control, "NEWEST", newer)
    begun(arena)
    monkeypatch.setattr(control, "OLDEST", newer)
    past = read(arena, WINDOW)
    assert past is not None
    assert past.joins == (join(0), join(2))


# --- a daemon after another


@pytest.mark.parametrize("each", [1, 2, 3])
def test_what_a_successor_writes_is_read_by_the_next(each: int) -> None:
    """One daemon after another takes some results, over a ring of its own."""
    processes, arena = Processes(), PrivateArena()
    past: Past | None = None
    while past is None or past.progress < len(processes.cuts):
        daemon = Daemon(processes, arena, Stores(), WINDOW, past)
        daemon.restores()
        daemon.opens()
        for _ in range(min(each, len(processes.cuts) - daemon.progress)):
            daemon.takes()
        past = read(arena, WINDOW)
        assert past is not None
        check(processes, past, daemon)
        assert (past.progress, past.torn, past.boot_id) == (daemon.progress, None, daemon.boot_id)
        for kept, data in past.kept:
            operation, offset, nbytes = processes.cuts[kept.serial]
            assert (kept.operation, kept.offset, kept.nbytes) == (operation, offset, nbytes)
            assert data == processes.result(kept.serial)


def test_a_successor_that_fails_at_once_leaves_all_that_was_said_before() -> None:
    arena = PrivateArena()
    begun(arena).say([join(0), join(2)], {2: 0}, "boot", (7, 4))
    past = read(arena, WINDOW)
    assert past is not None
    Journal.of_successor(arena, past).failed("rank_lost", "rank 3 is lost")
    assert read(arena, WINDOW) == replace(past, failure=("rank_lost", "rank 3 is lost"))


# --- a daemon that stops after any store


def whole(window: int, every: int = 4) -> int:
    stores = Stores()
    for _ in Daemon(Processes(), PrivateArena(), stores, window).script(every):
        pass
    return stores.done


def check(processes: Processes, past: Past, daemon: Daemon) -> None:
    """``past`` was left by ``daemon``, which may have ordered one result more than it took."""
    assert past.progress in (daemon.progress, daemon.progress - 1)
    assert past.left in ({}, daemon.left)
    if past.failure is not None:
        assert past.failure in (("", ""), (ERROR.code, str(ERROR)))
        return
    first = max(0, past.progress - past.window_messages)
    assert [its.serial for its, _ in past.kept] == list(range(first, past.progress))
    for its, data in past.kept:
        assert data == processes.result(its.serial), f"result {its.serial} of {past.progress}"
    counted = past.progress - (past.torn is not None)
    for serial in range(len(processes.cuts)):
        if serial < counted:
            assert processes.has_result(serial)
        elif serial >= past.progress:
            assert processes.is_intact(serial)
    if past.torn is not None:
        operation, offset, _ = processes.cuts[counted]
        assert (past.torn.op_index, past.torn.offset) == (operation.index, offset)
        assert past.torn.data == processes.result(counted)


def stop_at(processes: Processes, arena: Arena, daemon: Daemon, every: int) -> Past | None:
    """The daemon runs until it is stopped; what it has left, if it was."""
    with contextlib.suppress(Stopped):
        for _ in daemon.script(every):
            pass
        return None
    past = read(arena, daemon.window)
    if past is not None:
        check(processes, past, daemon)
    return past


def goes_on_after(window: int, every: int, stops: list[int]) -> bool:
    """Daemons stop at these stores, one after the other, and the next finishes; whether all of them did."""
    processes, arena = Processes(), PrivateArena()
    past: Past | None = None
    for stop in stops:
        daemon = Daemon(processes, arena, Stores(stop), window, past)
        past = stop_at(processes, arena, daemon, every)
        if past is None or past.failure is not None:
            return False
    last = Daemon(processes, arena, Stores(), window, past)
    assert stop_at(processes, arena, last, every) is None
    assert all(map(processes.has_result, range(len(processes.cuts))))
    return True


@pytest.mark.parametrize(("window", "every"), [(2, 4), (1, 3), (4, 5)])
def test_whichever_store_was_the_last_a_successor_goes_on(window: int, every: int) -> None:
    stores = whole(window, every)
    assert stores > 250
    went_on = sum(goes_on_after(window, every, [stop]) for stop in range(stores))
    assert went_on > stores - 30  # the first of them begin the job, the last end it


@pytest.mark.parametrize("window", [1, 2, 4])
def test_the_successor_may_be_stopped_as_well(window: int) -> None:
    """While it mends what was torn, writes what is kept, and begins to take results."""
    stores, draws = whole(window), random.Random(window)
    for first in range(12, stores, 9):
        for second in draws.sample(range(60), 6):
            goes_on_after(window, 4, [first, second])
            goes_on_after(window, 4, [first, second, draws.randrange(40)])


def test_every_pair_of_stores() -> None:
    for first in range(12, whole(2)):
        for second in range(45):
            goes_on_after(2, 4, [first, second])


def test_a_word_is_stored_once_and_whole() -> None:
    journal = begun(SharedArena())
    stored: list[tuple[int, int]] = []

    class Words:
        def __setitem__(self, at: int, word: int) -> None:
            stored.append((at, word))

    journal._words = Words()  # type: ignore[assignment]
    for _ in range(3):
        journal.taken()
    assert stored == [(layout._TAKEN_WORD, taken) for taken in (1, 2, 3)]


def test_a_word_has_no_value_in_between() -> None:
    """What another process sees of it, or finds when this one is killed, is the old one or the new one."""
    arena = SharedArena()
    journal = begun(arena)
    where = layout._TAKEN_AT
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            while True:
                journal.taken()
        os._exit(1)
    try:
        words = arena.look(where, 8).cast("Q")
        before = 0
        while before < 300_000:
            now = words[0]
            assert before <= now, f"{now} after {before}"
            before = now
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_process_that_is_killed_leaves_a_journal_to_go_on_from() -> None:
    draws = random.Random(0)
    operation = Operation(OpIndex(0), Dtype.I32, Op.SUM, (1 << 30) * TENSOR_BYTES, 7)
    for _ in range(10):
        arena = SharedArena()
        journal = begun(arena)
        slots = arena.allocate(8 * TENSOR_BYTES)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                write_for_ever(journal, operation, slots)
            os._exit(1)
        words = arena.look(layout._TAKEN_AT, 8).cast("Q")
        until = draws.randrange(5000)
        while words[0] < until:
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        past = read(arena, WINDOW)
        assert past is not None
        assert past.progress >= until
        for its, data in past.kept:
            assert data == its.serial.to_bytes(TENSOR_BYTES, "little")


def write_for_ever(journal: Journal, operation: Operation, slots: Any) -> None:
    """Results, and now and then the end of a ring."""
    serial, kept = 0, list[int]()
    while True:
        at = serial % 8 * TENSOR_BYTES
        slots.view[at : at + TENSOR_BYTES] = serial.to_bytes(TENSOR_BYTES, "little")
        journal.taking(operation, serial * TENSOR_BYTES, TENSOR_BYTES, slots.at + at, "switch")
        journal.taken()
        kept = [*kept[1 - WINDOW :], serial]
        serial += 1
        if serial % 5 == 0:
            results = [KeptResult(s, operation, False, s * 8, 8, RingId(1), 0) for s in kept]
            journal.keep(results, [s.to_bytes(TENSOR_BYTES, "little") for s in kept])
