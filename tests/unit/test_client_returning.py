"""A rank whose host daemon is replaced goes on through the successor; what it holds does not notice."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

import inaproto
from inaproto.client.blocking_communicator import connect_blocking
from inaproto.client.watcher import WATCHER
from inaproto.errors import DaemonUnreachable, JobError, LocalMisuse, RankLost
from inaproto.wire.control_messages import Status, StatusReply, error_message
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import (
    AllReduce,
    Buffer,
    Filled,
    Leave,
    Ok,
    Rejoin,
    Taken,
)
from tests.unit.fake_host import DEADLINE_S, Host, in_thread, joined, leave, one, ones, results, until


@pytest.fixture
def path(runtime_dir: Path) -> Iterator[Path]:
    yield runtime_dir / "h0.sock"
    until(lambda: not WATCHER.is_running)  # with the last channel it ends


def test_operations_under_way_are_said_anew_in_order(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        buffer = comm.buffer(4)
        works = [comm.all_reduce(ones(each)) for each in range(1, 4)]
        buffer[:] = 7
        works.append(comm.all_reduce(buffer, in_place=True))
        for _ in range(2):
            connection.take(Buffer)
        connection.end(1)
        asked = [connection.take(AllReduce) for _ in range(3)]
        works[0].wait(DEADLINE_S)
        journal = os.fstat(host.journal).st_ino
        successor = host.followed()
        back = successor.accept()
        rejoin, again = back.rejoined(2, 3)
        assert (rejoin.job, rejoin.rank, rejoin.size, rejoin.key) == ("j", 0, 2, "k")
        assert (rejoin.done, rejoin.called) == (1, 4)
        assert os.fstat(back.journal).st_ino == journal
        assert [(each.op_index, each.segment, each.offset, each.nbytes, each.call) for each in again] == [
            (each.op_index, each.segment, each.offset, each.nbytes, each.call) for each in asked
        ]
        back.say(Ok(id=rejoin.id), *[back.sum(each) for each in again])
        assert results(works) == [[2] * 3, [4] * 3, [6] * 3, [14] * 4]
        assert comm.returns == 1
        leave(back, comm)
        successor.kill()


def test_who_computes_and_touches_nothing_is_back_all_the_same(path: Path) -> None:
    with joined(path) as (host, _, comm):
        successor = host.followed()
        back = successor.accept()  # this thread is the only one of the program
        rejoin, _ = back.rejoined(0, 0)
        assert (rejoin.done, rejoin.called) == (0, 0)
        back.say(Ok(id=rejoin.id))
        work = comm.all_reduce(ones())
        back.take(Buffer)
        back.end(1)
        assert results([work]) == [[2] * 3]
        leave(back, comm)
        successor.kill()


def test_who_waits_for_a_result_gets_it_from_the_successor(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        waiting = in_thread(comm.all_reduce(ones()).wait)
        connection.take(Buffer)
        connection.take(AllReduce)
        host.kill()
        until(lambda: one(comm).is_returning)
        called = comm.all_reduce(np.full(5, 3, np.float32))
        successor = type(host)(path)
        back = successor.accept()
        rejoin, again = back.rejoined(1, 2)
        assert (rejoin.done, rejoin.called) == (0, 2)
        back.say(Ok(id=rejoin.id), *[back.sum(each) for each in again])
        assert waiting.result(DEADLINE_S).tolist() == [2] * 3
        assert results([called]) == [[6] * 5]
        leave(back, comm)
        successor.kill()


def test_what_was_unread_when_the_daemon_went_is_not_done_again(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        works = [comm.all_reduce(ones(each)) for each in range(1, 4)]
        connection.take(Buffer)
        connection.end(2)
        last = connection.take(AllReduce)
        successor = host.followed()
        back = successor.accept()
        rejoin, (again,) = back.rejoined(1, 1)
        assert (rejoin.done, rejoin.called) == (2, 3)
        assert again.op_index == last.op_index == 2
        assert comm.operations_done == 0, "nobody has read them yet"
        back.say(Ok(id=rejoin.id), back.sum(again))
        assert results(works) == [[2] * 3, [4] * 3, [6] * 3]
        assert comm.operations_done == 3
        leave(back, comm)
        successor.kill()


def test_a_refusal_ends_the_rank_with_the_successors_words(path: Path) -> None:
    with joined(path) as (host, _, comm):
        work = comm.all_reduce(ones())
        successor = host.followed()
        back = successor.accept()
        rejoin, _ = back.rejoined(1, 1)
        back.say(error_message(JobError("the journal is of another job"), of=rejoin.id))
        with pytest.raises(JobError, match="the journal is of another job"):
            work.wait(DEADLINE_S)
        back.close()
        with pytest.raises(JobError, match="the journal is of another job"):
            comm.all_reduce(ones())
        comm.close()
        assert comm.returns == 0
        successor.kill()


def test_without_a_successor_the_rank_fails_and_says_how_long_it_has_waited(path: Path) -> None:
    with joined(path, successor_ms=200) as (host, _, comm):
        work = comm.all_reduce(ones())
        host.kill()
        words = r" has taken this rank on within 0\.2 s \(Connection refused\); look at its log"
        with pytest.raises(DaemonUnreachable, match=words) as told:
            work.wait(DEADLINE_S)
        assert f": {path})" in str(told.value)
        assert comm.channel.is_closed


@pytest.mark.parametrize("said", [{"successor_ms": 0}, {}])
def test_without_a_journal_or_time_for_one_it_fails_at_once(path: Path, said: dict[str, int]) -> None:
    with joined(path, gives_journal=bool(said), **said) as (host, _, comm):
        assert not WATCHER.is_running
        work = comm.all_reduce(ones())
        host.kill()
        with pytest.raises(DaemonUnreachable, match=r"gone \(.*\); look at its log"):
            work.wait(DEADLINE_S)


async def test_a_trio_communicator_goes_on_as_well(path: Path) -> None:
    host = Host(path)
    async with trio.open_nursery() as nursery:
        done: list[list[float]] = []

        async def rank() -> None:
            comm = await inaproto.connect("j", 0, size=2, socket=path, timeout=DEADLINE_S)
            works = [comm.all_reduce(ones(each)) for each in range(1, 4)]
            done.extend([(await work).tolist() for work in works])
            assert comm.returns == 1
            await comm.aclose()

        def play() -> None:
            _, connection = host.join()
            connection.take(Buffer)
            connection.end(1)
            connection.take(AllReduce)
            host.kill()
            successor = Host(path)
            back = successor.accept()
            rejoin, again = back.rejoined(1, 2)
            back.say(Ok(id=rejoin.id), *[back.sum(each) for each in again])
            back.say(Ok(id=back.take(Leave).id))
            back.wait_closed()
            successor.kill()

        nursery.start_soon(rank)
        with trio.fail_after(DEADLINE_S):
            await trio.to_thread.run_sync(play)
    assert done == [[2] * 3, [4] * 3, [6] * 3]


# --- in every state


def test_an_error_that_was_unread_when_the_daemon_went_ends_the_rank(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        work = comm.all_reduce(ones())
        connection.take(Buffer)
        connection.take(AllReduce)
        connection.say(error_message(RankLost("rank 1 is gone")))
        successor = host.followed()
        with pytest.raises(RankLost, match="rank 1 is gone"):
            work.wait(DEADLINE_S)
        comm.close()
        assert not successor.is_dialled
        successor.kill()


def test_more_than_the_socket_takes_is_said_while_the_program_computes(path: Path) -> None:
    count = 3000
    with joined(path) as (host, connection, comm):
        works = [comm.all_reduce(np.full(1, each, np.float32)) for each in range(count)]
        connection.take(Buffer)
        successor = host.followed()
        back = successor.accept()
        until(lambda: one(comm).has_output)
        rejoin, again = back.rejoined(1, count)  # nobody else touches the communicator
        assert [each.op_index for each in again] == list(range(count))
        back.say(Ok(id=rejoin.id))
        saying = in_thread(back.say, *[back.sum(each) for each in again])
        assert results(works) == [[2 * each] for each in range(count)]
        saying.result(DEADLINE_S)
        leave(back, comm)
        successor.kill()


def test_a_successor_that_dies_while_it_is_told_has_a_successor(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        work = comm.all_reduce(ones())
        connection.take(Buffer)
        for _ in range(3):
            host = host.followed()
            host.accept().take(Rejoin)
        successor = host.followed()
        back = successor.accept()
        rejoin, again = back.rejoined(1, 1)
        back.say(Ok(id=rejoin.id), *[back.sum(each) for each in again])
        assert results([work]) == [[2] * 3]
        assert comm.returns == 1, "one of them has taken it on"
        host = successor.followed()
        back = host.accept()
        rejoin, _ = back.rejoined(1, 0)
        assert (rejoin.done, rejoin.called) == (1, 1)
        back.say(Ok(id=rejoin.id))
        leave(back, comm)
        host.kill()


def test_those_that_take_none_on_do_not_prolong_the_wait(path: Path) -> None:
    """Each new one is heard of at once, and closes: the time without a daemon is what counts."""
    with joined(path, successor_ms=300) as (host, _, comm):
        work = comm.all_reduce(ones())
        waiting = in_thread(work.exception)
        host = host.followed()
        while not waiting.done():
            if host.is_dialled:
                host.accept().close()
        assert isinstance(waiting.result(), DaemonUnreachable)
        host.kill()


def test_bytes_that_are_there_are_counted_when_the_rank_returns(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        channel = one(comm)
        regions = [channel.memory.allocate(800) for _ in range(3)]
        channel.announce()

        def call(number: int, filled: int) -> object:
            return channel.all_reduce(regions[number], 800, Dtype.F32, Op.SUM, (200,), filled=filled)

        first, second, third = (call(number, 100) for number in range(3))
        channel.filled(second, 200)  # type: ignore[arg-type]
        connection.take(Buffer)
        host.kill()
        until(lambda: channel.is_returning)
        channel.filled(third, 800)  # type: ignore[arg-type]
        successor = Host(path)
        back = successor.accept()
        rejoin, again = back.rejoined(1, 3)
        assert [each.filled for each in again] == [100, 200, None]
        channel.filled(first, 400)  # type: ignore[arg-type]
        assert back.take(Filled).nbytes == 400
        back.say(Ok(id=rejoin.id))
        comm.engine.channel.close()
        successor.kill()


def test_results_that_were_taken_may_be_told_again(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        array = np.arange(1 << 20, dtype=np.float32)
        work = comm.all_reduce(array, in_place=True)
        connection.take(Buffer)
        asked = connection.take(AllReduce)
        while connection.take(Filled).nbytes < array.nbytes:
            pass
        done = connection.sum(asked)
        connection.say(Taken(op_index=0, nbytes=2 << 20))
        until(lambda: not work.done and array[(1 << 19) - 1] == 2 * ((1 << 19) - 1))
        successor = host.followed()
        back = successor.accept()
        rejoin, again = back.rejoined(1, 1)
        assert again[0].filled is None
        told = [Taken(op_index=0, nbytes=part << 20) for part in (1, 3)]
        back.say(Ok(id=rejoin.id), *told, done)
        assert work.wait(DEADLINE_S) is array
        assert (array == 2 * np.arange(1 << 20, dtype=np.float32)).all()
        leave(back, comm)
        successor.kill()


def test_who_was_leaving_leaves_by_the_successor(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        closing = in_thread(comm.close)
        connection.take(Leave)
        successor = host.followed()
        back = successor.accept()
        rejoin, _ = back.rejoined(0, 0)
        back.say(Ok(id=rejoin.id), Ok(id=back.take(Leave).id))
        closing.result(DEADLINE_S)
        back.wait_closed()
        successor.kill()


def test_who_was_leaving_waits_for_no_daemon_for_ever(path: Path) -> None:
    with joined(path, successor_ms=100) as (host, connection, comm):
        closing = in_thread(comm.close)
        connection.take(Leave)
        host.kill()
        closing.result(DEADLINE_S)


def test_a_leave_that_was_confirmed_needs_no_successor(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        closing = in_thread(comm.close)
        connection.say(Ok(id=connection.take(Leave).id))
        successor = host.followed()
        closing.result(DEADLINE_S)
        assert not successor.is_dialled
        successor.kill()


def test_what_was_asked_for_the_status_is_asked_again(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        channel = one(comm)
        channel.send(channel.protocol.ask_status())
        connection.take(Status)
        successor = host.followed()
        back = successor.accept()
        rejoin, _ = back.rejoined(0, 0)
        back.say(Ok(id=rejoin.id), StatusReply(id=back.take(Status).id, body={"name": "new"}))

        def has_answer() -> bool:
            channel.pump()
            return channel.protocol.status == {"name": "new"}

        until(has_answer)
        leave(back, comm)
        successor.kill()


# --- whoever waits


def test_callbacks_and_futures_go_on_and_the_watcher_calls_none(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        called: list[str] = []
        works = [comm.all_reduce(ones(each)) for each in range(1, 4)]
        works[0].add_done_callback(lambda _: called.append(threading.current_thread().name))
        futures = [work.future() for work in works]
        connection.take(Buffer)
        connection.end(1)
        assert futures[0].result(DEADLINE_S).tolist() == [2] * 3
        connection.say(connection.sum(connection.take(AllReduce)))
        connection.take(AllReduce)
        successor = host.followed()
        back = successor.accept()
        rejoin = back.take(Rejoin)
        back.take(Buffer)
        back.say(Ok(id=rejoin.id))
        back.end(rejoin.called - rejoin.done)
        assert [each.result(DEADLINE_S).tolist() for each in futures] == [[2] * 3, [4] * 3, [6] * 3]
        until(lambda: called == ["inaproto-completions"])
        leave(back, comm)
        successor.kill()


def test_threads_that_wait_and_call_meanwhile_all_go_on(path: Path) -> None:
    with joined(path) as (host, connection, comm):
        waiting = [in_thread(comm.all_reduce(ones(each)).wait) for each in range(1, 4)]
        connection.take(Buffer)
        connection.take(AllReduce)
        host.kill()
        calling = in_thread(lambda: comm.all_reduce(ones(9)).wait(DEADLINE_S))
        successor = Host(path)
        back = successor.accept()
        rejoin = back.take(Rejoin)
        back.take(Buffer)
        back.say(Ok(id=rejoin.id))
        back.end(4)  # some of them said anew, others perhaps after it
        found = [each.result(DEADLINE_S).tolist() for each in (*waiting, calling)]
        assert found == [[2] * 3, [4] * 3, [6] * 3, [18] * 3]
        leave(back, comm)
        successor.kill()


def test_nobody_is_woken_while_the_successor_is_awaited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(path) as (host, connection, comm):
        channel = one(comm)
        tries, pumps = 0, 0
        dial, pump = channel._dial, channel.pump
        assert dial is not None

        def count_dial(to: Path) -> object:
            nonlocal tries
            tries += 1
            return dial(to)

        def count_pump() -> None:
            nonlocal pumps
            pumps += 1
            pump()

        monkeypatch.setattr(channel, "_dial", count_dial)
        monkeypatch.setattr(channel, "pump", count_pump)
        waiting = in_thread(comm.all_reduce(ones()).wait)
        connection.take(Buffer)
        connection.take(AllReduce)
        host.kill()
        until(lambda: tries > 10)
        assert pumps < 10
        successor = Host(path)
        back = successor.accept()
        rejoin, again = back.rejoined(1, 1)
        back.say(Ok(id=rejoin.id), *[back.sum(each) for each in again])
        waiting.result(DEADLINE_S)
        leave(back, comm)
        successor.kill()


# --- what is left


def test_the_log_says_that_the_daemon_is_gone_and_that_its_successor_is_there(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "inaproto.client")
    with joined(path) as (host, _, comm):
        successor = host.followed()
        back = successor.accept()
        back.say(Ok(id=back.take(Rejoin).id))
        leave(back, comm)
        successor.kill()
    gone, there = [record.getMessage() for record in caplog.records]
    assert gone.startswith(
        f"rank 0 of job 'j': the host daemon is gone (it closed the connection: {path}); waits"
    )
    assert "waits up to 60 s for its successor" in gone
    assert f"the successor of its host daemon answers at {path} after 0." in there


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_who_is_dropped_without_being_closed_leaves_neither_socket_nor_thread(path: Path) -> None:
    host = Host(path)
    connecting = in_thread(connect_blocking, "j", 0, size=2, socket=path, timeout=DEADLINE_S)
    _, connection = host.join()
    comm = connecting.result(DEADLINE_S)
    until(lambda: WATCHER.is_running)
    before = len(os.listdir("/proc/self/fd"))
    del comm, connecting
    gc.collect()
    connection.wait_closed()
    until(lambda: not WATCHER.is_running)
    assert len(os.listdir("/proc/self/fd")) < before - 2  # socket, journal, what the thread had
    host.kill()


def test_a_child_of_a_fork_has_no_part_in_it(path: Path) -> None:
    with joined(path) as (host, _, comm):
        successor = host.followed()
        back = successor.accept()
        back.say(Ok(id=back.take(Rejoin).id))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(writing)
                with pytest.raises(LocalMisuse, match="does not survive fork"):
                    comm.all_reduce(ones())
                assert not WATCHER.is_running
                os.read(reading, 1)  # lives as long as the parent needs it
                one(comm).close()
                status = 0
            finally:
                os._exit(status)
        os.close(reading)
        comm.channel.close()
        back.wait_closed()  # though the child lives
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        successor.kill()


def test_a_fork_while_the_successor_is_awaited(path: Path) -> None:
    with joined(path) as (host, _, comm):
        host.kill()
        until(lambda: one(comm).is_returning)
        child = os.fork()
        if not child:
            try:
                one(comm).close()
            finally:
                os._exit(0 if one(comm).is_closed else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        successor = Host(path)
        back = successor.accept()
        back.say(Ok(id=back.take(Rejoin).id))
        leave(back, comm)
        successor.kill()


def test_a_working_directory_that_changes_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with joined(Path(path.name)) as (host, _, comm):
        host.kill()
        monkeypatch.chdir("/")
        successor = Host(path)
        back = successor.accept()
        back.say(Ok(id=back.take(Rejoin).id))
        leave(back, comm)
        successor.kill()
