"""The job API's client, where more ask at once than the controller has accepted."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.service.job_client import ControllerUnreachable, JobClient

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"jobs":[]}'


@contextlib.contextmanager
def full_listener(path: Path) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A listener that takes no more connections, and those that it keeps."""
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                one.setblocking(False)
                one.connect(str(path))
                waiting.append(one)
        yield listener, waiting


def test_who_comes_when_the_backlog_is_full_waits_for_a_place(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runtime_dir / "controller.sock"
    found: list[object] = []
    waits = threading.Event()
    monkeypatch.setattr("inaproto_controller.service.job_client.time.sleep", lambda _: waits.set())
    with full_listener(path) as (listener, waiting):
        asking = threading.Thread(target=lambda: found.append(JobClient([str(path)]).jobs(live=True)))
        asking.start()
        assert waits.wait(60), "it waits"
        for _ in waiting:
            listener.accept()[0].close()
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(4096).startswith(b"GET /v1/jobs?live=true")
            accepted.sendall(ANSWER)
            asking.join()
    assert found == [[]]


def test_where_no_place_becomes_free_it_is_the_time_that_is_over(runtime_dir: Path) -> None:
    path = runtime_dir / "controller.sock"
    client = JobClient([str(path)], answer_s=0.05)
    with full_listener(path), pytest.raises(ControllerUnreachable, match=r"no answer within 0\.05 s"):
        client.jobs(live=True)


def test_a_place_where_no_jobs_are_asked_is_told_from_a_controller(runtime_dir: Path) -> None:
    """What is answered at the agents' socket is no text, and a directory is no socket."""
    jobs = runtime_dir / "controller.sock"
    for wrong in (runtime_dir, runtime_dir / "controller-agents.sock"):
        with pytest.raises(ConfigError, match=f"jobs are asked at {jobs}"):
            JobClient([str(wrong)]).jobs(live=True)
