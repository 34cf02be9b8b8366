"""Engines: every task is done once, errors come back, and no worker process is left, whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.context import SpawnProcess

import pytest

from inaproto.errors import ConfigError, InaprotoError, Unsupported
from inaproto.task_engines import InProcess, Local, OnRay, WorkerDied, open_engine

DEADLINE_S = 600.0


def square(number: int) -> int:
    return number * number


def process(_: int) -> int:
    return os.getpid()


def refuses(kind: type[Exception]) -> None:
    raise kind("not today")


def dies(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def waits_for_ever(_: int) -> None:
    threading.Event().wait()


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("engine", [InProcess(), Local(1), Local(2), Local(9)], ids=["here", "1", "2", "9"])
def test_each_task_has_its_outcome(engine: InProcess | Local) -> None:
    assert sorted(engine.outcomes(square, range(6))) == [0, 1, 4, 9, 16, 25]
    assert list(engine.outcomes(square, [])) == []


def test_one_process_is_this_one_and_of_several_none_is() -> None:
    assert set(open_engine("local", 1).outcomes(process, range(3))) == {os.getpid()}
    others = set(open_engine("local", 2).outcomes(process, range(6)))
    assert 1 <= len(others) <= 2
    assert os.getpid() not in others
    assert os.getpid() not in set(Local(1).outcomes(process, range(3)))


def test_tasks_are_taken_up_as_there_is_room() -> None:
    tasks = iter(range(100))
    with closing(Local(2).outcomes(square, tasks)) as outcomes:
        next(outcomes)
    assert next(tasks) == 3  # one for each, and one more for the one that was done


@pytest.mark.parametrize(
    ("raised", "here", "said"),
    [
        (ConfigError, ConfigError, "^not today$"),
        (OSError, InaprotoError, "^not today$"),
        (ZeroDivisionError, RuntimeError, "(?s)in a worker process:\n.*in refuses\n.*not today"),
    ],
)
def test_what_work_raises_is_raised_here(raised: type[Exception], here: type[Exception], said: str) -> None:
    with pytest.raises(here, match=said) as caught:
        list(Local(2).outcomes(refuses, [raised, raised, raised]))
    assert type(caught.value) is here


def test_a_worker_that_dies_is_said() -> None:
    with pytest.raises(WorkerDied, match="killed for want of memory"):
        list(Local(2).outcomes(dies, [1, 2]))


def test_workers_end_in_the_middle_of_a_task_when_nobody_asks_any_more() -> None:
    def tasks() -> Iterator[int]:
        yield from (1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Local(3).outcomes(waits_for_ever, tasks()))


def starts_with(signals: list[signal.Signals], monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as a worker has started, a thread that is not the main one takes these."""
    start = SpawnProcess.start

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # as in a thread that was there before
        for number in signals:
            signal.pthread_kill(threading.get_ident(), number)

    def start_and_take(worker: SpawnProcess) -> None:
        start(worker)
        library = threading.Thread(target=take)
        library.start()
        library.join(DEADLINE_S)

    monkeypatch.setattr(SpawnProcess, "start", start_and_take)


def test_a_signal_that_a_thread_takes_while_a_worker_starts_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts_with([signal.SIGINT], monkeypatch)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        list(Local(2).outcomes(waits_for_ever, [1, 2]))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_while_a_worker_starts_all_come_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    starts_with([signal.SIGTERM, signal.SIGINT], monkeypatch)
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        assert list(Local(1).outcomes(square, [3])) == [9]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert sorted(heard) == [signal.SIGINT, signal.SIGTERM]


def test_signals_are_left_alone_off_the_main_thread() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(Local(2).outcomes(square, [1, 2, 3])))
    thread.start()
    thread.join(DEADLINE_S)
    assert sorted(found) == [1, 4, 9]


def test_ray_is_asked_for_by_name_if_it_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unsupported, match=r"pip install 'inaproto\[ray\]'"):
        open_engine("ray", 1)
    with pytest.raises(Unsupported, match="engine ray"):
        OnRay()
