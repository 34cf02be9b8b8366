"""Submitting a job and waiting until it has its hosts; cancelling one that may be over: for scripts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

from inaproto.errors import InaprotoError
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient

RETRY_S: Final = 0.5
LONGEST_ASK_S: Final = 20.0
_OVER: Final = ("ended", "cancelled", "failed")
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class NotPlaced(InaprotoError):
    """The job did not get its hosts in time, and was cancelled; the text says what it waited for."""


@contextmanager
def taken_back() -> Iterator[None]:
    """SIGTERM, of schedulers and ``timeout``, and SIGHUP, where nobody ignores that, end what is done in here
    as Ctrl-C does: with an exception, on whose way a job that was submitted is cancelled. One that nobody
    waits for any more would be placed, and hold its hosts for ever. Signals are the main thread's: in another
    one nothing is heard.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for each in heard:  # ``timeout`` says it twice, and the second one would end the cancelling
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    heard = [each for each in _ENDING if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in heard:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, signal.SIG_DFL)


def submit_and_wait(
    client: JobClient,
    name: str,
    hosts: int,
    *,
    ranks_per_host: int,
    model: str | None,
    on: Sequence[str],
    elastic: bool = False,
    submission: str,
    wait_s: float,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """As the API answers, once the job has hosts. A job of that name that ends just now is waited for, and so
    is a controller that is not there; ``tell`` hears of these, once each.

    Raises ``NotPlaced``, ``ControllerRefused``, ``ControllerUnreachable``; the job is cancelled then, and no
    other one that has its name by now.
    """
    until = time.monotonic() + wait_s

    def submit() -> dict[str, Any]:
        return client.submit(
            name,
            hosts,
            ranks_per_host=ranks_per_host,
            model=model,
            on=on,
            elastic=elastic,
            submission=submission,
        )

    found = _again(submit, until, "name_taken", tell=tell)
    job, number = found["job"], found["job"]["number"]
    try:
        while not job["hosts"] or job["state"] in _OVER or job["number"] != number:
            if job["number"] != number:
                raise NotPlaced(f"job {name} is over, and another one has its name")
            left = until - time.monotonic()
            if left <= 0 or job["state"] in _OVER:
                what = f"it is {job['state']}: {job['why']}"
                raise NotPlaced(f"job {name} has no hosts after {wait_s:g} s: {what}")
            newer = partial(client.job, name, after=job["revision"], wait_s=min(left, LONGEST_ASK_S))
            job = _again(newer, until, tell=tell)
    except BaseException:
        with suppress(InaprotoError):
            if client.job(name)["number"] == number:
                client.cancel(name)
        raise
    return {**found, "job": job}


def cancel_if_there(client: JobClient, name: str, *, wait_s: float) -> dict[str, Any] | None:
    """The job, cancelled or over already; None: there is none of that name.

    Raises ``ControllerRefused`` and, after ``wait_s``, ``ControllerUnreachable``.
    """
    try:
        return _again(lambda: client.cancel(name), time.monotonic() + wait_s)
    except ControllerRefused as error:
        if error.code == "no_such_job":
            return None
        raise


def _again(
    ask: Callable[[], T], until: float, *codes: str, tell: Callable[[str], None] = lambda text: None
) -> T:
    """Its answer; until then it is asked again if no controller answers, or refuses by one of ``codes``."""
    told = ""
    while True:
        try:
            return ask()
        except (ControllerUnreachable, ControllerRefused) as error:
            may_pass = isinstance(error, ControllerUnreachable) or error.code in codes
            if not may_pass or time.monotonic() >= until:
                raise
            if str(error) != told:
                told = str(error)
                tell(told)
            time.sleep(RETRY_S)
