"""``inaproto top``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from inaproto.cli import guarded
from inaproto.option_types import FiniteRange
from inaproto.pasted import pasted
from inaproto.reader_gone import unread

if TYPE_CHECKING:
    from inaproto_controller.service.top.snapshot import Snapshot, Whom
    from inaproto_controller.service.top.view import Further

INTERVAL_S: Final = 1.0

_EPILOG: Final = """
\b
Examples:
  inaproto top --dir /tmp/ina
  inaproto top --dir /tmp/ina --once
  inaproto top --json --interval 5 | jq '.rates.hosts'

Rates are those of the last interval; "-" where there is none to say. Ctrl-C ends it.
"""


@click.command(short_help="Watch what running daemons are doing.", epilog=_EPILOG)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="All daemons whose sockets are here, and the switches and controller that they name.",
)
@click.option(
    "--socket", "sockets", type=click.Path(path_type=Path), multiple=True, help="This daemon; repeatable."
)
@click.option(
    "--control", "controls", multiple=True, metavar="tls://NAME@ADDRESS:PORT", help="This switch, with --tls."
)
@click.option("--tls", type=click.Path(path_type=Path), help="Directory of an operator's certificate.")
@click.option(
    "--controller", "controllers", multiple=True, help="Socket or http:// of a controller; repeatable."
)
@click.option("--interval", type=FiniteRange(0.1, 3600.0), default=INTERVAL_S, show_default=True, help="s.")
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print that and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="A JSON object a line: report, rates, controller, jobs."
)
def top(
    directory: Path | None,
    sockets: tuple[Path, ...],
    controls: tuple[str, ...],
    tls: Path | None,
    controllers: tuple[str, ...],
    interval: float,
    once: bool,
    as_json: bool,
) -> None:
    """Watch what running daemons are doing: all-reduces and bytes a second by path, why jobs are not summed
    in a switch, whose turn it is, and a controller's jobs."""
    from inaproto_controller.service.top.view import Further

    further = Further(
        pasted("job list", dir=directory, controller=controllers),
        pasted("status", dir=directory, socket=sockets, control=controls, tls=tls),
    )
    guarded(
        lambda: _top(
            _whom(directory, sockets, controls, tls, controllers),
            interval,
            further,
            once=once,
            as_json=as_json,
        )
    )


def _whom(
    directory: Path | None,
    sockets: tuple[Path, ...],
    controls: tuple[str, ...],
    tls: Path | None,
    controllers: tuple[str, ...],
) -> Whom:
    from inaproto.client.run_directory import run_directory
    from inaproto.daemon.net.control_address import door_for_operator
    from inaproto.daemon.net.names import JOBS_SOCKET
    from inaproto_controller.service.top.snapshot import Whom

    if directory is None and not sockets and not controls and not controllers:
        directory = run_directory(os.environ)
    if directory is not None and not controllers and (directory / JOBS_SOCKET).is_socket():
        controllers = (str(directory / JOBS_SOCKET),)
    return Whom(directory, sockets, [door_for_operator(control, tls) for control in controls], controllers)


def _top(whom: Whom, interval_s: float, further: Further, *, once: bool, as_json: bool) -> None:
    import trio

    problems: list[str] = []

    async def watch() -> None:
        from rich.console import Console
        from rich.live import Live

        from inaproto_controller.service.top.view import show

        console = Console(highlight=False, soft_wrap=once)
        with ExitStack() as stack:
            live = None
            if console.is_terminal and not once and not as_json:
                live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
            async for snapshot, rates in _looks(whom, interval_s, once=once):
                problems[:] = snapshot.report.problems
                if as_json:
                    with unread():
                        click.echo(json.dumps(_document(snapshot, rates), default=repr))
                elif live is not None:
                    live.update(show(snapshot, rates, further), refresh=True)
                else:
                    with unread():
                        console.print(show(snapshot, rates, further))

    try:
        trio.run(watch)
    except KeyboardInterrupt:
        return
    if problems:
        sys.exit(1)


async def _looks(
    whom: Whom, interval_s: float, *, once: bool
) -> AsyncIterator[tuple[Snapshot, dict[str, Any]]]:
    import trio

    from inaproto_controller.service.top.snapshot import look, rates

    before = await look(whom)
    if not once:
        yield before, rates(before, before)
    while True:
        await trio.sleep(interval_s)
        now = await look(whom)
        yield now, rates(before, now)
        if once:
            return
        before = now


def _document(snapshot: Snapshot, rates: dict[str, Any]) -> dict[str, Any]:
    return {
        "report": snapshot.report.as_dict(),
        "rates": rates,
        "controller": snapshot.controller,
        "jobs": list(snapshot.jobs),
    }
