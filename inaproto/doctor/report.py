"""What ``inaproto doctor`` looks at, and how it says what it found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from inaproto.client.run_directory import run_directory
from inaproto.daemon.net.names import AGENTS_SOCKET
from inaproto.daemon.observe.status import Report, ask_daemons
from inaproto.doctor.checklist import Answer
from inaproto.doctor.findings import Outcome
from inaproto.doctor.round_trip import measure_round_trip
from inaproto.doctor.site import Asked, Site
from inaproto.pasted import pasted

_STYLES = {
    Outcome.OK: "green",
    Outcome.WARNING: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.UNTESTABLE: "dim",
}


def usual_directory() -> Path | None:
    """The directory that daemons have by default, where some of this user have."""
    usual = run_directory(os.environ)
    return usual if usual.is_dir() and any(usual.glob("*.sock")) else None


def site(asked: Asked, directory: Path | None, sockets: Sequence[Path]) -> Site:
    found = Site(asked, round_trip=measure_round_trip)
    found.status = pasted("status", dir=directory, socket=sockets)
    if directory is not None and AGENTS_SOCKET in found.names(str(directory.absolute())):
        found.controller_socket = directory / AGENTS_SOCKET
    if directory is not None or sockets:
        told: Report = trio.run(ask_daemons, directory, sockets)
        found.switches = [one for one in (told.switch, *told.other_switches) if one is not None]
        found.hosts = told.hosts
        found.problems = told.problems
        found.daemons_asked = ", ".join(map(str, [*([directory] if directory else []), *sockets]))
    return found


def records(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [
        {
            "check": answer.check.name,
            "outcome": found.outcome.value,
            "found": found.found,
            "why": answer.check.why,
            "mend": found.mend,
        }
        for answer in answers
        for found in answer.findings
    ]


def show(answers: Sequence[Answer]) -> None:
    """For people."""
    console = Console(highlight=False)
    console.print(_table(answers))
    console.print(_untestable(answers))
    console.print(_summary(answers))


def _table(answers: Sequence[Answer]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("check", "outcome"):
        table.add_column(title, no_wrap=True)
    table.add_column("found; why it matters; how to mend it", overflow="fold")
    for answer in answers:
        for found in answer.findings:
            if found.outcome is Outcome.UNTESTABLE:
                continue
            text = Text(found.found)
            if found.outcome in {Outcome.WARNING, Outcome.FAILED}:
                text.append(f"\n{answer.check.why}", "dim")
            if found.mend:
                text.append(f"\n-> {found.mend}", "bold")
            table.add_row(answer.check.name, Text(found.outcome.value, _STYLES[found.outcome]), text)
    return table


def _untestable(answers: Sequence[Answer]) -> Text:
    """Reasons, each once, with the checks that stand back by it."""
    reasons: dict[str, list[str]] = {}
    for answer in answers:
        for found in answer.findings:
            if found.outcome is Outcome.UNTESTABLE:
                said = f"{found.found}\n  -> {found.mend}" if found.mend else found.found
                reasons.setdefault(said, []).append(answer.check.name)
    lines = [f"not testable here: {', '.join(names)}: {said}" for said, names in reasons.items()]
    return Text("\n".join(["", *lines]) if lines else "", _STYLES[Outcome.UNTESTABLE])


def _summary(answers: Sequence[Answer]) -> str:
    counts = dict.fromkeys(Outcome, 0)
    for answer in answers:
        for found in answer.findings:
            counts[found.outcome] += 1
    return ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
