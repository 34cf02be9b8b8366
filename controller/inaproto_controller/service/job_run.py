"""``inaproto job submit NAME ... -- COMMAND``: the processes of a job, where the controller has placed it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from inaproto.errors import ConfigError
from inaproto_controller.service.job_client import ControllerUnreachable, JobClient
from inaproto_controller.service.submitting import Submission

OVER: Final = ("ended", "cancelled", "failed")
WAIT_S: Final = 20.0
RETRY_S: Final = 1.0
LEAVE_S: Final = 10.0
"""A job whose ranks have left in order is over for its controller within that."""
LEAVE_ELASTIC_S: Final = 60.0
"""The same for one that may have lost a host, which is known when its lease is over."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How the processes are to be started."""

    words: tuple[str, ...]
    on: str = ""
    here: Path | None = None
    """Directory of host daemons of this machine; None: the usual one."""
    there: Path | None = None
    """Directory of host daemons on others; None: the usual one there."""
    options: tuple[str, ...] = ()
    """Of ``inaproto run``."""
    is_elastic: bool = False
    """Some go on when others end badly."""


def run_job(submission: Submission, submitted: dict[str, Any], asked: Asked) -> int:
    """Wait until the job is placed, run it, and leave nothing of it; the exit status.

    Raises ``ConfigError``, ``ControllerRefused`` and ``ControllerUnreachable``. The job is over then.
    """
    import trio

    from inaproto.client.run_directory import run_directory
    from inaproto.launch.daemons import running_hosts
    from inaproto.launch.placed import parts_of, run_parts
    from inaproto.launch.plan import find_command
    from inaproto.launch.processes import require_pidfd

    client = submission.client
    name, number = submitted["job"]["name"], submitted["job"]["number"]
    if submitted["job"]["state"] not in ("submitted", "queued", "placed"):
        raise ConfigError(
            f"job {name} was submitted before, and is {_state(submitted['job'])}; it is left alone"
        )
    status = 1
    try:
        require_pidfd()
        placed = _until(
            client, name, number, lambda job: bool(job["hosts"]) or job["state"] in OVER, tell=True
        )
        if placed["state"] in OVER:
            raise ConfigError(f"job {name} is over before it began ({_state(placed)})")
        directory = asked.here or run_directory(os.environ)
        hosts, _ = trio.run(running_hosts, directory)
        here = {host: directory for host, _ in hosts}
        if all(host in here for host in placed["hosts"]):
            find_command(asked.words, os.environ, Path.cwd(), sys.executable)  # else it is elsewhere, perhaps
        parts = parts_of(
            job=name,
            hosts=placed["hosts"],
            ranks_per_host=placed["ranks_per_host"],
            words=asked.words,
            here=here,
            on=asked.on,
            there=asked.there,
            launcher=(sys.executable, "-m", "inaproto", "run"),
            options=asked.options,
            work_dir=Path.cwd(),
        )

        def until_over() -> str:
            return _state(_until(client, name, number, lambda job: job["state"] in OVER))

        status = run_parts(parts, submitted["token"], os.environ, until_over, is_elastic=asked.is_elastic)
    finally:
        within_s = LEAVE_ELASTIC_S if asked.is_elastic else LEAVE_S
        if status == 0:
            _let_end(client, name, number, within_s)
        submission.take_back()
    return status


def _until(
    client: JobClient, name: str, number: int, ready: Callable[[dict[str, Any]], bool], *, tell: bool = False
) -> dict[str, Any]:
    """The job when it is ``ready``. It outlives the controller."""
    revision, trouble, said = -1, "", ""
    while True:
        try:
            found = client.job(name, after=revision, wait_s=WAIT_S if revision >= 0 else 0.0)
        except ControllerUnreachable as error:
            if tell and str(error) != trouble:
                click.echo(f"inaproto job: {error}; waiting for it", err=True)
            trouble = str(error)
            time.sleep(RETRY_S)
            continue
        trouble = ""
        if found["number"] != number:  # ours is forgotten, so it is over
            return {**found, "state": "ended", "why": "", "hosts": []}
        if tell and _told(found) != said:
            said = _told(found)
            click.echo(f"inaproto job: {name}: {said}", err=True)
        if ready(found):
            return found
        revision = found["revision"]


def _let_end(client: JobClient, name: str, number: int, within_s: float) -> None:
    """The job is over by itself when this returns, or has had that time for it."""
    until = time.monotonic() + within_s
    with suppress(ControllerUnreachable):
        found = client.job(name)
        while found["number"] == number and found["state"] not in OVER:
            left = until - time.monotonic()
            if left <= 0:
                return
            found = client.job(name, after=found["revision"], wait_s=left)


def _told(found: dict[str, Any]) -> str:
    hosts: Sequence[str] = found["hosts"]
    return _state(found) + (f" on {', '.join(hosts)}" if hosts and found["state"] not in OVER else "")


def _state(found: dict[str, Any]) -> str:
    return f"{found['state']}: {found['why']}" if found["why"] else str(found["state"])
