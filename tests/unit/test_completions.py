"""Threads for callbacks: how many there are, and that callbacks which wait for each other are not stuck."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from inaproto.client import completions
from inaproto.client.completions import CompletionThreads

LIMIT_S = 60


def nested(threads: CompletionThreads, depth: int, ended: threading.Event) -> Callable[[], None]:
    """A call that submits the next one and waits for its end, ``depth`` times."""

    def call() -> None:
        if depth > 1:
            inner = threading.Event()
            threads.submit(nested(threads, depth - 1, inner))
            assert inner.wait(LIMIT_S)
        ended.set()

    return call


@pytest.mark.parametrize(("threads_max", "depth"), [(1, 5), (4, 20), (64, 66)])
def test_calls_that_wait_for_each_other_end_however_deep(threads_max: int, depth: int) -> None:
    threads = CompletionThreads(threads_max, idle_s=0.05)
    ended = threading.Event()
    threads.submit(nested(threads, depth, ended))
    assert ended.wait(LIMIT_S)
    assert threads.drain(LIMIT_S)


def test_no_more_threads_are_started_while_calls_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "STALL_S", LIMIT_S)  # none ends for so long on no machine
    threads = CompletionThreads(threads_max=3)
    seen: set[int] = set()
    for _ in range(200):
        threads.submit(lambda: seen.add(threading.get_ident()))
    assert threads.drain(LIMIT_S)
    assert 1 <= len(seen) <= threads.threads <= 3


def test_calls_that_are_nested_without_end_are_told_of() -> None:
    threads = CompletionThreads(threads_max=2, threads_limit=3)
    told, let_go = threading.Event(), threading.Event()
    errors: list[str] = []

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.ERROR:
                errors.append(record.getMessage())
                told.set()

    handler = Told()
    log = logging.getLogger("inaproto.client")
    log.addHandler(handler)
    try:
        for _ in range(5):
            threads.submit(lambda: let_go.wait(LIMIT_S))
        assert told.wait(LIMIT_S)
    finally:
        log.removeHandler(handler)
        let_go.set()
    assert "3 callbacks of operations that have ended are under way, and none ends; 2 more wait" in errors[0]
    assert threads.drain(LIMIT_S)


def test_one_more_thread_than_callbacks_are_under_way_up_to_a_bound() -> None:
    threads = CompletionThreads(threads_max=3, idle_s=0.01)
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        begun.release()
        go_on.wait(LIMIT_S)

    for _ in range(5):
        threads.submit(block)
    for _ in range(3):
        assert begun.acquire(timeout=LIMIT_S)
    assert threads.threads == 3
    assert not threads.drain(0.01)
    go_on.set()
    assert threads.drain(LIMIT_S)
    while threads.threads > 1:
        time.sleep(0.001)
    done = threading.Event()
    threads.submit(done.set)
    assert done.wait(LIMIT_S)


def test_a_completion_thread_does_not_wait_for_itself() -> None:
    threads = CompletionThreads()
    found: list[bool] = []
    threads.submit(lambda: found.append(threads.drain(LIMIT_S)))
    assert threads.drain(LIMIT_S)
    assert found == [False]


def test_a_call_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    threads = CompletionThreads()
    threads.submit(lambda: 1 // 0)
    assert threads.drain(LIMIT_S)
    assert "ZeroDivisionError" in caplog.text
