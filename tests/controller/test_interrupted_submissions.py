"""``inaproto job submit`` that is ended while the controller answers: the job is cancelled, or named."""

from __future__ import annotations

import json
import signal
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_cli_daemons import COMMAND, DEADLINE_S, environment

QUEUED = {"name": "j", "number": 7, "state": "queued", "why": "", "hosts": [], "revision": 1}


class Controller(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A double: it has the job as soon as it is submitted, and does not answer the first submission."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answering)
        self.asked = threading.Event()
        self.gone = threading.Event()
        """No answer comes any more."""
        self.bodies: list[dict[str, Any]] = []
        self.cancelled: list[str] = []


class Answering(BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        controller = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/jobs":
            controller.bodies.append(body)
            if len(controller.bodies) == 1:
                controller.asked.set()
                self.rfile.read()  # until whoever asked is gone
                return
        if controller.gone.is_set():
            return
        if self.path.endswith("/cancel"):
            controller.cancelled.append(self.path.split("/")[3])
        self._answer({"job": QUEUED, "token": "t"})

    def do_GET(self) -> None:
        self._answer({"job": QUEUED})

    def _answer(self, found: dict[str, Any]) -> None:
        data = json.dumps(found).encode()
        with suppress(OSError):
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing."""

    def address_string(self) -> str:
        return ""


@contextmanager
def controller(directory: Path) -> Iterator[Controller]:
    with Controller(directory / "controller.sock") as double:
        serving = threading.Thread(target=double.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield double
        finally:
            double.shutdown()
            serving.join()


def submitting(directory: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "job", "submit", "--dir", str(directory), "j", "--hosts", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("words", [(), ("--wait", "600"), ("--", "true")], ids=["plain", "waits", "runs"])
def test_a_submission_that_is_ended_before_its_answer_leaves_no_job(
    runtime_dir: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    with controller(runtime_dir) as double, submitting(runtime_dir, *words) as process:
        assert double.asked.wait(DEADLINE_S)
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, double.cancelled) == (128 + number, ["j"]), err
    first, second = double.bodies
    assert first == second


def test_a_job_that_nobody_answers_for_is_named_with_the_command_that_ends_it(runtime_dir: Path) -> None:
    with controller(runtime_dir) as double, submitting(runtime_dir, "--wait", "600") as process:
        assert double.asked.wait(DEADLINE_S)
        double.gone.set()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    command = f"inaproto job cancel --dir {runtime_dir} j"
    assert err.endswith(f"; job j may be left at the controller: {command}\n"), err


def test_a_submission_that_can_be_repeated_is_left_as_it_is(runtime_dir: Path) -> None:
    """The same command finds it."""
    words = ("--submission", "s" * 40)
    with controller(runtime_dir) as double, submitting(runtime_dir, *words) as process:
        assert double.asked.wait(DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    assert (len(double.bodies), double.cancelled) == (1, [])
