"""Blocking communicators that many threads use and that go on by themselves, with real daemons."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import inaproto
from inaproto.client.completions import THREADS_MAX
from inaproto.errors import RankLost
from inaproto.wire.control_messages import PathAsked
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 240
"""Longer than a busy machine needs, so only a hang meets it."""
THREADS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ClusterConfig(hosts=2)) as running:
        yield running


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A name of its own: ranks of the test before may have left, and the daemon not have heard of it."""
    return re.sub(r"\W", "-", request.node.name)


def on_threads(*calls: Callable[[], object]) -> None:
    """Raises what any of them raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert errors or not thread.is_alive()
    if errors:
        raise errors[0]


def connect_all(
    cluster: LocalCluster, stack: ExitStack, job: str, places: Sequence[int], path: PathAsked | None = None
) -> list[inaproto.BlockingCommunicator]:
    found: dict[int, inaproto.BlockingCommunicator] = {}

    def connect(rank: int) -> None:
        socket = cluster.host_socket(places[rank])
        found[rank] = inaproto.connect_blocking(
            job, rank, size=len(places), socket=socket, path=path, timeout=DEADLINE_S
        )

    ranks = range(len(places))
    on_threads(*(partial(connect, rank) for rank in ranks))
    comms = [found[rank] for rank in ranks]
    stack.callback(lambda: on_threads(*(comm.close for comm in comms)))
    return comms


class Turns:
    """The order in which the threads of a rank call, the same on all ranks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0

    def __call__(self, number: int, call: Callable[[], inaproto.BlockingWork]) -> inaproto.BlockingWork:
        with self._changed:
            assert self._changed.wait_for(lambda: self._next == number, DEADLINE_S)
            work = call()
            self._next += 1
            self._changed.notify_all()
        return work


def use(
    comm: inaproto.BlockingCommunicator,
    thread: int,
    turns: Turns,
    operations: int,
    in_place: Callable[[int], bool],
) -> None:
    """Its share of the operations, waited for in an order of its own; half of them by callbacks, too."""
    draws = random.Random(f"{comm.rank}/{thread}")
    called: list[inaproto.BlockingWork] = []
    asked = 0
    works: list[tuple[int, inaproto.BlockingWork]] = []
    for each in range(operations):
        number = each * THREADS + thread
        array = np.full(3 + number % 50, number + comm.rank, np.int64)

        work = turns(number, partial(comm.all_reduce, array, in_place=in_place(number)))
        if draws.random() < 0.5:
            work.add_done_callback(called.append)
            asked += 1
        works.append((number, work))
        if draws.random() < 0.1:
            number, work = works[draws.randrange(len(works))]
            work.wait(DEADLINE_S)
    draws.shuffle(works)
    expected = sum(range(comm.size))
    for number, work in works:
        result = work.wait(DEADLINE_S)
        assert result.tolist() == [comm.size * number + expected] * (3 + number % 50)
        assert work.done
    until = time.monotonic() + DEADLINE_S
    while len(called) < asked and time.monotonic() < until:  # by another thread, after those that waited
        time.sleep(0.001)
    assert len({id(work) for work in called}) == len(called) == asked


@pytest.mark.parametrize("operations", [30, 1000])
@pytest.mark.parametrize(
    ("places", "in_place"),
    [((0, 1), "none"), ((0, 1), "all"), ((0, 0), "all"), ((0, 0), "some"), ((0, 0, 1), "some")],
    ids=["two hosts", "two hosts in place", "one host in place", "one host, some in place", "three ranks"],
)
def test_threads_call_and_wait_in_any_order(
    cluster: LocalCluster, stack: ExitStack, job: str, places: Sequence[int], in_place: str, operations: int
) -> None:
    comms = connect_all(cluster, stack, job, places)
    choose = {"none": lambda _: False, "all": lambda _: True, "some": lambda number: number % 3 == 0}[
        in_place
    ]
    turns = [Turns() for _ in comms]
    on_threads(
        *(
            partial(use, comm, thread, turns[comm.rank], operations, choose)
            for comm in comms
            for thread in range(THREADS)
        )
    )
    for comm in comms:
        assert comm.operations_done == comm.statistics().operations == THREADS * operations


@pytest.mark.parametrize("in_place", [False, True])
def test_done_becomes_true_without_a_wait(
    cluster: LocalCluster, stack: ExitStack, job: str, in_place: bool
) -> None:
    """Also where ranks of a host add in place, by whoever asks."""
    comms = connect_all(cluster, stack, job, (0, 0))
    works = [comm.all_reduce(np.full(200_000, comm.rank, np.int32), in_place=in_place) for comm in comms]
    while sum(work.done for work in works) < 2:  # each is asked, every time
        time.sleep(0.0005)
    for work in works:
        assert (work.wait(0) == 1).all()
        assert f"inaproto {comms[0].who}" not in [thread.name for thread in threading.enumerate()]


def opened() -> dict[str, str]:
    """The descriptors of this process, and what they are."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of this look itself, or of another thread
            found[each.name] = str(each.readlink())
    return found


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("is_driven", [False, True], ids=["without a progress thread", "with one"])
@pytest.mark.parametrize("places", [(0, 1), (0, 0)], ids=["two hosts", "one host"])
def test_who_drops_a_communicator_gives_its_descriptors_back(
    cluster: LocalCluster, job: str, places: Sequence[int], is_driven: bool
) -> None:
    def use_and_drop(name: str) -> None:
        with ExitStack() as closing:
            comms = connect_all(cluster, closing, name, places)
            closing.pop_all()
            works = [comm.all_reduce(np.ones(1000, np.float32), in_place=True) for comm in comms]
            on_threads(*(work.wait for work in works))
            for comm in comms if is_driven else ():
                comm.engine.start()

    use_and_drop(f"{job}-first")  # what a process has once, it has from here on
    gc.collect()
    before = opened()
    use_and_drop(job)
    until = time.monotonic() + DEADLINE_S
    while (left := opened().items() - before.items()) and time.monotonic() < until:
        gc.collect()
    assert not left


@pytest.mark.parametrize("place", [0, 1])
def test_a_callback_waits_for_another_all_reduce(
    cluster: LocalCluster, stack: ExitStack, job: str, place: int
) -> None:
    comms = connect_all(cluster, stack, job, (0, place))
    ended = [threading.Event() for _ in comms]
    found: list[list[int]] = []

    def call_back(work: inaproto.BlockingWork) -> None:
        comm = comms[ranks[id(work)]]
        total = comm.all_reduce(work.wait(0) + comm.rank, in_place=True).wait(DEADLINE_S)
        found.append(total.tolist())
        ended[comm.rank].set()

    works = [comm.all_reduce(np.full(2, comm.rank + 1, np.int64), in_place=True) for comm in comms]
    ranks = {id(work): rank for rank, work in enumerate(works)}
    for work in works:
        work.add_done_callback(call_back)
    for event in ended:
        assert event.wait(DEADLINE_S)
    assert found == [[7, 7]] * 2


def test_who_waits_for_another_operation_adds_what_was_called_before_too(
    cluster: LocalCluster, stack: ExitStack, job: str
) -> None:
    """Without a progress thread: the same calls in the same order, waited for in another one."""
    first, second = connect_all(cluster, stack, job, (0, 0))
    arrays = [np.full(70_000, rank, np.int32) for rank in range(2)]

    def one() -> None:
        first.all_reduce(arrays[0], in_place=True).wait(DEADLINE_S)
        assert first.all_reduce(1).wait(DEADLINE_S) == 2

    def other() -> None:
        works = second.all_reduce(arrays[1], in_place=True), second.all_reduce(1)
        assert works[1].wait(DEADLINE_S) == 2
        works[0].wait(DEADLINE_S)

    on_threads(one, other)
    assert all((array == 1).all() for array in arrays)
    names = [thread.name for thread in threading.enumerate()]
    assert not {f"inaproto {comm.who}" for comm in (first, second)}.intersection(names)


def test_callbacks_that_wait_for_futures_and_callbacks_of_others_end_however_many(
    cluster: LocalCluster, stack: ExitStack, job: str
) -> None:
    """More than there are threads at once; and one whose callback waits for its own future."""
    (comm,) = connect_all(cluster, stack, job, (0,))
    depth = THREADS_MAX + 3
    started = threading.Event()
    works: list[inaproto.BlockingWork] = []
    called = [threading.Event() for _ in range(depth)]

    def call_back(number: int, work: inaproto.BlockingWork) -> None:
        started.wait(DEADLINE_S)
        assert work.future().result(DEADLINE_S).tolist() == [number]
        if number + 1 < depth:
            assert works[number + 1].future().result(DEADLINE_S).tolist() == [number + 1]
            assert called[number + 1].wait(DEADLINE_S)
        called[number].set()

    for number in range(depth):
        work = comm.all_reduce(np.full(1, number))
        works.append(work)
        work.add_done_callback(partial(call_back, number))
    started.set()
    assert called[0].wait(DEADLINE_S)


def start(
    stack: ExitStack,
    cluster: LocalCluster,
    job: str,
    place: int,
    *,
    operations: int,
    in_place: bool,
    forks: bool,
) -> subprocess.Popen[str]:
    """Rank 1 of 2."""
    options = [str(operations), str(int(in_place)), str(int(forks))]
    command = [
        sys.executable,
        "-m",
        "tests.daemon.forking_rank",
        job,
        "1",
        "2",
        str(cluster.host_socket(place)),
    ]
    process = subprocess.Popen([*command, *options], cwd=TREE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def await_ready(stack: ExitStack, process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    word, child = process.stdout.readline().split()
    assert word == "ready"
    if int(child):
        stack.callback(os.kill, int(child), signal.SIGKILL)
    return int(child)


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a child"])
@pytest.mark.parametrize(
    ("place", "in_place"), [(0, True), (0, False), (1, False)], ids=["in place", "one host", "two hosts"]
)
def test_all_that_waits_for_a_killed_rank_hears_of_it(
    cluster: LocalCluster, stack: ExitStack, job: str, place: int, in_place: bool, forks: bool
) -> None:
    """Also where a child of that rank lives on, which has inherited what it was connected by."""
    process = start(stack, cluster, job, place, operations=5, in_place=in_place, forks=forks)
    comm = inaproto.connect_blocking(job, 0, size=2, socket=cluster.host_socket(0))
    stack.callback(comm.close)
    for step in range(5):
        result = comm.all_reduce(np.full(100, step, np.int64), in_place=in_place).wait(DEADLINE_S)
        assert (result == 2 * step + 1).all()
    child = await_ready(stack, process)
    works = [comm.all_reduce(np.ones(100, np.int64), in_place=in_place) for _ in range(100)]
    called: list[inaproto.BlockingWork] = []
    all_called = threading.Event()

    def call_back(work: inaproto.BlockingWork) -> None:
        called.append(work)
        if len(called) == 100:
            all_called.set()

    for work in works:
        work.add_done_callback(call_back)
    works += [comm.all_reduce(np.ones(100, np.int64), in_place=in_place) for _ in range(100)]
    process.kill()
    assert all_called.wait(DEADLINE_S)
    assert len({id(work) for work in called}) == 100
    errors = [work.exception(DEADLINE_S) for work in works]
    assert {type(error) for error in errors} == {RankLost}
    assert len({str(error) for error in errors}) == 1
    assert "rank 1" in str(errors[0])
    with pytest.raises(RankLost):
        comm.all_reduce(np.ones(100, np.int64), in_place=in_place)
    if child:
        os.kill(child, 0)  # it is there still: nobody waited for its end
