"""Submitting a job and waiting until it has its hosts; cancelling one that may be over: for scripts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

import click

from inaproto.errors import InaprotoError
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient

RETRY_S: Final = 0.5
LONGEST_ASK_S: Final = 20.0
TAKE_BACK_S: Final = 10.0
"""For each answer: whoever has ended this process may not wait for it."""
_OVER: Final = ("ended", "cancelled", "failed")
_NEW: Final = ("submitted", "queued", "placed")
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class NotPlaced(InaprotoError):
    """The job did not get its hosts in time, and was cancelled; the text says what it waited for."""


class Interrupted(SystemExit):
    """A signal ends this process."""


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
        raise Interrupted(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    heard = [each for each in _ENDING if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in heard:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def _unheard() -> Iterator[None]:
    """Signals that end this process do not; a further Ctrl-C does."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {each: signal.signal(each, signal.SIG_IGN) for each in _ENDING if is_main}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Submission:
    """A job that somebody submits, and waits for: an end of his takes it back, whenever it comes."""

    def __init__(
        self, client: JobClient, name: str, hosts: int, *, cancelling: str = "", **fields: Any
    ) -> None:
        """``cancelling``: a command that does it, for a person. ``fields``: of :meth:`JobClient.submit`."""
        self.client, self.name = client, name
        self._hosts, self._fields = hosts, fields
        self._cancelling = cancelling or f"inaproto job cancel {name}"
        self._may_be_there = False
        """At the controller, and not over, and nobody else has made it run."""
        self._number: int | None = None
        """None: no answer has come."""

    def ask(self) -> dict[str, Any]:
        """Submit it; again, it is the same job. Raises ``ControllerRefused``, ``ControllerUnreachable``."""
        return self._ask(self.client)

    def _ask(self, client: JobClient) -> dict[str, Any]:
        before, self._may_be_there = self._may_be_there, True
        try:
            found = client.submit(self.name, self._hosts, **self._fields)
        except ControllerRefused:
            self._may_be_there = False
            raise
        except ControllerUnreachable as error:
            self._may_be_there = before or error.may_be_done
            raise
        self._may_be_there = found["job"]["state"] in _NEW
        self._number = found["job"]["number"]
        return found

    @contextmanager
    def kept_at_the_end(self) -> Iterator[None]:
        """Where this is interrupted, by Ctrl-C or as :func:`taken_back` has it, the job is cancelled."""
        with taken_back():
            try:
                yield
            except (KeyboardInterrupt, Interrupted):
                self.take_back()
                raise

    def take_back(self) -> None:
        """Cancel it, whether an answer has come or not, and no other one that has its name by now. Where the
        controller does not answer, or somebody does not wait for it, he hears what may be left."""
        try:
            with _unheard():
                self._cancel()
        except ControllerRefused:  # it is not there
            self._may_be_there = False
        except BaseException as error:
            if self._may_be_there:
                self._may_be_there = False  # it is said once
                why = f"{error}; " if isinstance(error, InaprotoError) else ""
                left = f"{why}job {self.name} may be left at the controller: {self._cancelling}"
                for line in left.splitlines():
                    click.echo(f"inaproto job: {line}", err=True)
            if not isinstance(error, InaprotoError):
                raise

    def _cancel(self) -> None:
        client = self.client.within(TAKE_BACK_S)
        if self._may_be_there and self._number is None:
            self._ask(client)
        if not self._may_be_there:
            return
        job = client.job(self.name)
        if job["number"] == self._number and job["state"] not in _OVER:
            client.cancel(self.name)
        self._may_be_there = False


def submit_and_wait(
    submission: Submission, *, wait_s: float, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """As the API answers, once the job has hosts. A job of that name that ends just now is waited for, and so
    is a controller that is not there; ``tell`` hears of these, once each.

    Raises ``NotPlaced``, ``ControllerRefused``, ``ControllerUnreachable``; the job is cancelled then.
    """
    until = time.monotonic() + wait_s
    client, name = submission.client, submission.name
    try:
        found = _again(submission.ask, until, "name_taken", tell=tell)
        job, number = found["job"], found["job"]["number"]
        while not job["hosts"] or job["state"] in _OVER or job["number"] != number:
            if job["number"] != number:
                raise NotPlaced(f"job {name} is over, and another one has its name")
            left = until - time.monotonic()
            if left <= 0 or job["state"] in _OVER:
                what = f"it is {job['state']}: {job['why']}"
                raise NotPlaced(f"job {name} has no hosts after {wait_s:g} s: {what}")
            newer = partial(client.job, name, after=job["revision"], wait_s=min(left, LONGEST_ASK_S))
            job = _again(newer, until, tell=tell)
    except InaprotoError:
        submission.take_back()
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
