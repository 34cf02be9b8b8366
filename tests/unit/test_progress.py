"""A blocking communicator that goes on by itself: threads, callbacks, futures, deadlines, endings."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import inaproto
from inaproto.client import progress
from inaproto.client.blocking_communicator import BlockingCommunicator
from inaproto.client.works import BlockingWork
from inaproto.errors import JobError, LocalMisuse, OperationTimeout, RankLost
from inaproto.wire.control_messages import encode_message, error_message
from tests.unit.one_rank import DEADLINE_S, Rank


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.close()


def has_thread(comm: BlockingCommunicator) -> bool:
    return any(thread.name == f"inaproto {comm.who}" for thread in threading.enumerate())


def on_threads(count: int, call: Callable[[int], object]) -> None:
    """Raises what any of them raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            call(number)
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


# --- one thread needs no other


def test_a_program_of_one_thread_gets_no_other(rank: Rank) -> None:
    works = [rank.comm.all_reduce(np.full(3, each, np.int32)) for each in range(20)]
    for each in random.Random(1).sample(range(20), 20):
        assert works[each].wait().tolist() == [each] * 3
        assert works[each].exception() is None
    assert not has_thread(rank.comm)


def test_done_becomes_true_without_a_wait_and_without_a_thread(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(3, np.float32))
    rank.peer.wait_asked(1)
    found = [work.done]
    rank.peer.go_on()
    while not found[-1]:
        time.sleep(0.001)
        found.append(work.done)
    assert not found[0]
    assert not has_thread(rank.comm)
    assert work.wait(0).tolist() == [1, 1, 1]


def test_what_is_printed_says_what_to_do(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones((2, 3), np.float32), "max")
    words = "<BlockingWork all-reduce 0 of rank 0 of job 'j': max of float32 (2, 3), "
    assert repr(work) == words + "under way; .wait() returns its result>"
    with pytest.raises(LocalMisuse, match=r"is no array; its result is what \.wait\(\) returns"):
        np.asarray(work)
    rank.peer.go_on()
    work.wait()
    assert repr(work) == words + "done; .wait() returns its result>"
    rank.peer.hold()
    failed = rank.comm.all_reduce(np.ones(1, np.float32), timeout=0)
    assert failed.done
    assert "failed: OperationTimeout: " in repr(failed)


# --- threads


def rests(comm: BlockingCommunicator) -> bool:
    """Waits until the progress thread rests, whose thread is there."""
    until = time.monotonic() + DEADLINE_S
    while comm.engine._is_serving and time.monotonic() < until:
        time.sleep(0.001)
    return has_thread(comm) and not comm.engine._is_serving


def test_a_thread_with_nothing_to_do_rests_and_waits_need_no_other_thread_again(rank: Rank) -> None:
    readers: list[str] = []
    pump = rank.comm.channel.pump

    def noted() -> None:
        readers.append(threading.current_thread().name)
        pump()

    rank.comm.channel.pump = noted  # type: ignore[method-assign]
    for each in range(20):
        assert rank.comm.all_reduce(np.full(1, each, np.int32)).future().result(DEADLINE_S).tolist() == [each]
        assert rests(rank.comm)
        readers.clear()
        assert rank.comm.all_reduce(np.full(1, each, np.int32)).wait(DEADLINE_S).tolist() == [each]
        assert set(readers) == {threading.current_thread().name}
    rank.peer.hold()
    late = rank.comm.all_reduce(np.ones(1, np.int32))
    readers.clear()
    with pytest.raises(OperationTimeout):
        late.wait(0.05)
    assert len(readers) < 20  # it sleeps
    rank.peer.go_on()
    assert late.future().result(DEADLINE_S).tolist() == [1]


def test_a_thread_that_has_yet_to_wake_up_gives_the_only_work_back_to_who_waits_for_it(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.comm.all_reduce(np.ones(1, np.int32)).future().result(DEADLINE_S)
    assert rests(rank.comm)
    engine, wakes = rank.comm.engine, threading.Event()
    readers: set[str] = set()
    pump = rank.comm.channel.pump

    def noted() -> None:
        readers.add(threading.current_thread().name)
        pump()

    monkeypatch.setattr(rank.comm.channel, "pump", noted)
    monkeypatch.setattr(engine._wanted, "set", wakes.set)  # it wakes up when it is told to, below
    works = [rank.comm.all_reduce(np.full(1, each, np.int32)) for each in range(3)]
    engine.watch(works[0])
    assert wakes.is_set()
    assert works[0].wait(DEADLINE_S).tolist() == [0]
    assert readers == {threading.current_thread().name}
    engine.watch(works[1])
    later = works[2].future()  # more than one is under way: that is the thread's
    monkeypatch.undo()
    engine._wanted.set()
    assert works[1].wait(DEADLINE_S).tolist() == [1]
    assert later.result(DEADLINE_S).tolist() == [2]
    assert rests(rank.comm)


def test_what_was_called_for_while_another_waited_goes_on_when_its_wait_is_over(rank: Rank) -> None:
    rank.comm.all_reduce(np.ones(1, np.int32)).future().result(DEADLINE_S)
    for _ in range(50):
        works = [rank.comm.all_reduce(np.full(1, each, np.int32)) for each in range(3)]
        futures = [work.future() for work in works[1:]]
        works[0].wait(DEADLINE_S)
        assert [future.result(DEADLINE_S).tolist() for future in futures] == [[1], [2]]
    assert rests(rank.comm)


def test_a_call_queues_for_room_when_the_thread_rests() -> None:
    rank = Rank(operations_max=2)
    rank.comm.all_reduce(np.ones(1, np.int32)).future().result(DEADLINE_S)
    assert rests(rank.comm)
    rank.peer.hold()
    works = [rank.comm.all_reduce(np.full(1, each, np.int32)) for each in range(5)]
    rank.peer.wait_asked(3)
    rank.peer.go_on()
    assert [work.wait(DEADLINE_S).tolist() for work in works] == [[each] for each in range(5)]
    rank.close()


def test_a_thread_does_not_rest_as_long_as_something_is_under_way(rank: Rank) -> None:
    rank.peer.hold()
    future = rank.comm.all_reduce(np.ones(1, np.int32)).future()
    other = rank.comm.all_reduce(np.full(1, 2, np.int32))
    rank.peer.wait_asked(2)
    assert rank.comm.engine._is_serving
    rank.peer.go_on()
    assert other.wait(DEADLINE_S).tolist() == [2]
    assert future.result(DEADLINE_S).tolist() == [1]
    assert rests(rank.comm)


def test_a_thread_that_rests_ends_with_its_communicator(rank: Rank) -> None:
    rank.comm.all_reduce(np.ones(1, np.int32)).future().result(DEADLINE_S)
    assert rests(rank.comm)
    rank.comm.close()
    assert not has_thread(rank.comm)


@pytest.mark.parametrize("room", [4096, 5])
def test_threads_that_meet_while_callbacks_come_and_go(room: int) -> None:
    """Nobody has started the progress thread for good: it rests in between until two threads meet."""
    rank = Rank(operations_max=room)

    def use(thread: int) -> None:
        draws = random.Random(f"{room}/{thread}")
        for each in range(60):
            value = thread * 1000 + each
            work = rank.comm.all_reduce(np.full(2, value, np.int64), in_place=each % 2 == 0)
            if draws.random() < 0.5:
                assert work.future().result(DEADLINE_S).tolist() == [value, value]
            assert work.wait(DEADLINE_S).tolist() == [value, value]

    for threads in (1, 1, 4):
        on_threads(threads, use)
    assert rank.peer.asked == list(range(360))
    rank.close()


@pytest.mark.parametrize("room", [4096, 5])
def test_threads_call_and_wait_in_any_order(room: int) -> None:
    """Room is for fewer than are called: they queue, as soon as there are two threads."""
    rank = Rank(operations_max=room)
    rank.comm.engine.start()
    numbered: dict[int, int] = {}

    def use(thread: int) -> None:
        draws = random.Random(f"{room}/{thread}")
        works = []
        for each in range(100):
            value = thread * 1000 + each
            works.append((value, rank.comm.all_reduce(np.full(2, value, np.int64), in_place=each % 2 == 0)))
        draws.shuffle(works)
        for value, work in works:
            assert work.wait(DEADLINE_S).tolist() == [value, value]
            numbered[work.op_index] = value

    on_threads(8, use)
    assert rank.peer.asked == list(range(800)) == sorted(numbered)
    assert rank.peer.most_under_way <= room
    assert rank.comm.operations_done == rank.comm.statistics().operations == 800
    for thread in range(8):  # each thread's own are in the order of its calls
        mine = [numbered[index] for index in range(800) if numbered[index] // 1000 == thread]
        assert mine == sorted(mine)
    rank.close()


def test_a_second_thread_while_one_waits(rank: Rank) -> None:
    """The one that waits reads; the other one's call is what starts the progress thread."""
    rank.peer.hold()
    first = rank.comm.all_reduce(np.ones(1, np.int32))
    waiter = threading.Thread(target=first.wait, daemon=True)
    waiter.start()
    while not rank.comm.engine._is_driving:
        time.sleep(0.001)
    second = rank.comm.all_reduce(np.full(1, 2, np.int32))
    assert has_thread(rank.comm)
    rank.peer.wait_asked(2)
    rank.peer.go_on()
    assert second.wait(DEADLINE_S).tolist() == [2]
    waiter.join(DEADLINE_S)
    assert not waiter.is_alive()
    assert first.done


def test_a_thread_that_has_yet_to_poll_hands_its_wait_over_all_the_same(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has given the lock back; the progress thread starts, and does everything, before it polls."""
    is_over = threading.Event()
    real = select.poll

    class Late:
        def __init__(self) -> None:
            self._poll = real()
            self.register = self._poll.register

        def poll(self, left: float | None) -> list[tuple[int, int]]:
            if threading.current_thread() is waiter:
                assert is_over.wait(DEADLINE_S)
            return self._poll.poll(left)

    monkeypatch.setattr(select, "poll", Late)
    rank.peer.hold()
    first = rank.comm.all_reduce(np.ones(1, np.int32))
    waiter = threading.Thread(target=first.wait, daemon=True)
    waiter.start()
    while not rank.comm.engine._is_driving:
        time.sleep(0.001)
    second = rank.comm.all_reduce(np.full(1, 2, np.int32))
    rank.peer.go_on()
    assert second.wait(DEADLINE_S).tolist() == [2]
    assert first.done
    is_over.set()
    waiter.join(DEADLINE_S)
    assert not waiter.is_alive()


def test_many_threads_wait_for_one_work(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    threading.Timer(0.05, rank.peer.go_on).start()
    found: list[NDArray[Any]] = []
    on_threads(8, lambda _: found.append(work.wait(DEADLINE_S)))
    assert len({id(each) for each in found}) == 1


# --- callbacks, futures, descriptors


def test_a_callback_is_called_once_and_not_in_the_reading_thread(rank: Rank) -> None:
    called: list[tuple[BlockingWork, bool, str]] = []
    enough = threading.Event()

    def call_back(work: BlockingWork) -> None:
        called.append((work, work.done, threading.current_thread().name))
        if len(called) == 60:
            enough.set()

    works = [rank.comm.all_reduce(np.full(3, each, np.int32)) for each in range(20)]
    for work in works:
        work.add_done_callback(call_back)
        work.add_done_callback(call_back)
    for work in works:
        work.wait()
        work.add_done_callback(call_back)  # when it is done, too
    assert enough.wait(DEADLINE_S)
    assert [len([work for work, *_ in called if work is each]) for each in works] == [3] * 20
    assert {(done, name) for _, done, name in called} == {(True, "inaproto-completions")}


def test_a_callback_may_wait_for_the_next_all_reduce(rank: Rank) -> None:
    """As deep as one likes, as long as there are threads."""
    deepest = threading.Event()
    depth = 0

    def again(work: BlockingWork) -> None:
        nonlocal depth
        depth += 1
        assert work.wait(0).tolist() == [depth]
        following = rank.comm.all_reduce(np.full(1, depth + 1, np.int32))
        if depth == 20:
            deepest.set()
        else:
            following.add_done_callback(again)
            following.future().result(DEADLINE_S)

    rank.comm.all_reduce(np.ones(1, np.int32)).add_done_callback(again)
    assert deepest.wait(DEADLINE_S)


def test_a_callback_that_raises_ends_nobody_else(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    work.add_done_callback(lambda work: 1 // 0)
    work.add_done_callback(lambda work: called.set())
    assert called.wait(DEADLINE_S)
    assert work.wait().tolist() == [1]
    assert "a callback of <BlockingWork all-reduce 0 of rank 0 of job 'j'" in caplog.text


def test_a_future_and_a_descriptor_say_when_it_is_done(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    future = work.future()
    assert work.future() is future
    assert not future.cancel()
    assert work.fileno() == work.fileno()
    assert select.select([work], [], [], 0) == ([], [], [])
    rank.peer.go_on()
    assert select.select([work], [], [], DEADLINE_S) == ([work], [], [])
    assert future.result(DEADLINE_S).tolist() == [1]
    descriptor = work.fileno()
    late = rank.comm.all_reduce(np.ones(1, np.int32))
    late.wait()
    assert select.select([late], [], [], 0) == ([late], [], [])
    del work, future
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_work_is_awaited_under_asyncio(rank: Rank) -> None:
    async def main() -> list[list[int]]:
        works = [rank.comm.all_reduce(np.full(1, each, np.int32)) for each in range(10)]
        found = [(await work).tolist() for work in reversed(works)]
        rank.peer.hold()
        late = asyncio.ensure_future(awaiting(rank.comm.all_reduce(np.ones(1, np.int32))))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(late, 0.01)
        rank.peer.go_on()
        return found

    async def awaiting(work: BlockingWork) -> NDArray[Any]:
        result: NDArray[Any] = await work
        return result

    assert asyncio.run(main()) == [[each] for each in reversed(range(10))]


def test_the_wrong_event_loop_is_named(rank: Rank) -> None:
    with pytest.raises(LocalMisuse, match=r"needs Trio.*use inaproto\.connect_blocking\("):
        asyncio.run(inaproto.connect("j", 0, size=1))
    with pytest.raises(LocalMisuse, match=r"needs Trio.*use inaproto\.connect_model_blocking\("):
        asyncio.run(inaproto.connect_model("m"))
    work = rank.comm.all_reduce(np.ones(1, np.int32))

    async def awaiting() -> None:
        await work

    with pytest.raises(
        LocalMisuse, match=r"cannot be awaited in Trio; connect with `await inaproto\.connect"
    ):
        trio.run(awaiting)


# --- endings


def test_a_failure_ends_all_with_the_same_words(rank: Rank) -> None:
    rank.peer.hold()
    engine = rank.comm.engine
    engine.start()
    works = [rank.comm.all_reduce(np.ones(1, np.int32), in_place=each % 2 == 0) for each in range(50)]
    called: list[BlockingWork] = []
    for work in works[:25]:
        work.add_done_callback(called.append)
    rank.peer.wait_asked(50)
    rank.peer.say(error_message(RankLost("rank 3 is lost")))
    for work in works:
        with pytest.raises(RankLost, match=r"^rank 3 is lost$"):
            work.wait(DEADLINE_S)
        assert str(work.exception()) == "rank 3 is lost"
    with pytest.raises(RankLost, match=r"^rank 3 is lost$"):
        works[1].future().result(DEADLINE_S)
    with pytest.raises(RankLost, match=r"^rank 3 is lost$"):
        rank.comm.all_reduce(np.ones(1, np.int32))
    rank.close()
    assert sorted(map(id, called)) == sorted(map(id, works[:25]))


def test_a_failure_is_returned_and_raised_without_a_thread_too(rank: Rank) -> None:
    rank.peer.hold()
    works = [rank.comm.all_reduce(np.ones(1, np.int32)) for _ in range(3)]
    rank.peer.wait_asked(3)
    rank.peer.say(error_message(RankLost("rank 3 is lost")))
    for work in works:
        assert str(work.exception()) == "rank 3 is lost"
        with pytest.raises(RankLost, match=r"^rank 3 is lost$"):
            work.wait()
        assert work.done
    heard = threading.Event()
    works[0].add_done_callback(lambda work: heard.set())
    assert heard.wait(DEADLINE_S)
    assert not has_thread(rank.comm)


def test_what_is_queued_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUEUED_MAX", 10)
    rank = Rank(operations_max=2)
    rank.peer.hold()
    rank.comm.engine.start()
    works = [rank.comm.all_reduce(np.ones(1, np.int32)) for _ in range(2)]
    rank.peer.wait_asked(2)
    works += [rank.comm.all_reduce(np.ones(1, np.int32)) for _ in range(10)]
    with pytest.raises(LocalMisuse, match="10 of them wait to begin, the limit"):
        rank.comm.all_reduce(np.ones(1, np.int32))
    assert [work.op_index for work in works] == list(range(12))
    with pytest.raises(
        OperationTimeout, match=r"all-reduce 11 .* did not end within 0.01 s: others, called bef"
    ):
        works[11].wait(0.01)
    with pytest.raises(
        OperationTimeout, match=r"all-reduce 1 .* the host daemon does not know the job any mor"
    ):
        works[1].wait(0.01)
    rank.peer.say(error_message(RankLost("rank 3 is lost")))
    for work in works:
        assert str(work.exception(DEADLINE_S)) == "rank 3 is lost"
    rank.close()


def test_closing_ends_the_thread_and_what_is_under_way(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    called: list[str] = []
    work.add_done_callback(lambda work: called.append(str(work.exception())))
    assert has_thread(rank.comm)
    rank.comm.close()
    assert not has_thread(rank.comm)
    assert called == ["rank 0 of job 'j': the communicator was closed; connect again"]
    with pytest.raises(JobError, match="was closed; connect again"):
        work.wait()
    rank.comm.close()


def test_the_thread_that_reads_is_given_the_error_and_not_raised_it(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    rank.peer.far.sendall(encode_message(error_message(RankLost("rank 3 is lost"))))
    assert str(work.exception(DEADLINE_S)) == "rank 3 is lost"
    assert not has_thread(rank.comm)


def test_another_thread_closes_while_one_waits(rank: Rank) -> None:
    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    errors: list[JobError | None] = []
    waiter = threading.Thread(target=lambda: errors.append(work.exception()), daemon=True)
    waiter.start()
    while not rank.comm.engine._is_driving:
        time.sleep(0.001)
    rank.comm.close()
    waiter.join(DEADLINE_S)
    assert "was closed; connect again" in str(errors[0])
    assert not has_thread(rank.comm)


@pytest.mark.parametrize("is_at_rest", [False, True])
def test_a_communicator_that_nobody_has_any_more_takes_its_thread_with_it(is_at_rest: bool) -> None:
    rank = Rank()
    if not is_at_rest:
        rank.comm.engine.start()
    assert rank.comm.all_reduce(np.ones(1, np.int32)).future().result(DEADLINE_S).tolist() == [1]
    thread = rank.comm.engine._thread
    assert thread is not None
    assert not is_at_rest or rests(rank.comm)
    gone = weakref.ref(rank.comm)
    del rank.comm
    gc.collect()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert gone() is None
    rank.peer.join(DEADLINE_S)  # it saw the connection end
    rank.peer.far.close()


def test_a_fault_of_the_thread_ends_all(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    rank.peer.hold()
    work = rank.comm.all_reduce(np.ones(1, np.int32))
    future = work.future()
    monkeypatch.setattr(rank.comm.channel, "pump", broken)
    rank.comm.engine._alarm.ring()
    with pytest.raises(JobError, match="its progress thread failed: ZeroDivisionError"):
        future.result(DEADLINE_S)


# --- deadlines


@pytest.mark.parametrize("has_thread", [False, True])
def test_an_operation_of_its_own_deadline_fails_and_the_next_does_not(rank: Rank, has_thread: bool) -> None:
    rank.peer.hold()
    if has_thread:
        rank.comm.engine.start()
    late = rank.comm.all_reduce(np.ones(1, np.int32), timeout=0.01)
    patient = rank.comm.all_reduce(np.full(1, 2, np.int32), timeout=1000)
    while not late.done:
        time.sleep(0.001)
    for _ in range(2):
        with pytest.raises(OperationTimeout, match=r"all-reduce 0 .* did not end within 0.01 s"):
            late.wait(DEADLINE_S)
        assert isinstance(late.exception(), OperationTimeout)
    assert not patient.done
    rank.peer.go_on()
    assert patient.wait().tolist() == [2]
    assert late.exception() is not None
    with pytest.raises(LocalMisuse, match="timeout is -1"):
        rank.comm.all_reduce(np.ones(1, np.int32), timeout=-1)


def test_a_callback_hears_of_a_deadline_and_of_none_that_was_met(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DEADLINES_MIN", 4)
    heard: list[BlockingWork] = []
    works = [rank.comm.all_reduce(np.ones(1, np.int32), timeout=1000) for _ in range(40)]
    for work in works:
        work.add_done_callback(heard.append)
        work.wait()
    assert len(rank.comm.engine._deadlines) < 40
    rank.peer.hold()
    over = threading.Event()
    late = rank.comm.all_reduce(np.ones(1, np.int32), timeout=0.01)
    late.add_done_callback(lambda work: over.set())
    assert over.wait(DEADLINE_S)
    assert isinstance(late.exception(), OperationTimeout)
    rank.peer.go_on()
    rank.comm.all_reduce(np.ones(1, np.int32)).wait(DEADLINE_S)
    assert sorted(map(id, heard)) == sorted(map(id, works))


def test_a_queued_operation_whose_time_is_over_is_begun_all_the_same() -> None:
    rank = Rank(operations_max=1)
    rank.peer.hold()
    rank.comm.engine.start()
    first = rank.comm.all_reduce(np.ones(1, np.int32))
    late = rank.comm.all_reduce(np.ones(1, np.int32), timeout=0.01)
    last = rank.comm.all_reduce(np.full(1, 3, np.int32))
    assert isinstance(late.exception(DEADLINE_S), OperationTimeout)
    rank.peer.go_on()
    assert first.wait(DEADLINE_S).tolist() == [1]
    assert last.wait(DEADLINE_S).tolist() == [3]
    assert rank.peer.asked == [0, 1, 2]
    assert late.exception() is not None
    rank.close()


# --- processes


def test_a_child_of_a_fork_keeps_no_socket_and_hurts_nobody(rank: Rank) -> None:
    future = rank.comm.all_reduce(np.ones(1, np.int32)).future()
    future.result(DEADLINE_S)
    number = rank.comm.channel.channels[0].fileno()
    child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            assert os.readlink(f"/proc/self/fd/{number}") == os.devnull
            for use in (
                lambda: rank.comm.all_reduce(np.ones(1, np.int32)),
                lambda: rank.comm.buffer(3),
                rank.comm.engine.start,
            ):
                with pytest.raises(LocalMisuse, match="does not survive fork"):
                    use()
            rank.comm.close()
            status = 7
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert rank.comm.all_reduce(np.ones(1, np.int32)).wait(DEADLINE_S).tolist() == [1]


SCRIPT = """
import signal, socket, sys, threading, time
import numpy as np
from tests.unit.one_rank import Rank
rank = Rank()
rank.peer.hold()
work = rank.comm.all_reduce(np.ones(3, np.int32))
if {threaded}:
    work.add_done_callback(lambda work: work.wait())
print("ready", flush=True)
{ending}
"""


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(3)", 3), ("1 // 0", 1), ("work.wait()", -signal.SIGINT), ("pass", 0)],
    ids=["exit", "exception", "ctrl-c", "end"],
)
def test_a_script_ends_at_once_whatever_is_under_way(threaded: bool, ending: str, status: int) -> None:
    script = SCRIPT.format(threaded=threaded, ending=ending)
    tree = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if status < 0:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status, errors
    assert "Fatal" not in errors
