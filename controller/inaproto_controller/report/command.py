"""``inaproto report JOB``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from inaproto.cli import EXIT_FAILED, guarded
from inaproto.errors import ConfigError
from inaproto.option_types import FiniteRange
from inaproto.reader_gone import unread

if TYPE_CHECKING:
    from inaproto_controller.report.records import Statuses

LINK_GBIT_MIN: Final = 1e-6
LINK_GBIT_MAX: Final = 1e6
HOP_US_MAX: Final = 1e6
_EPILOG: Final = """
\b
Examples:
  inaproto report train1
  inaproto report train1 --html train1.html --link-gbit 100
  inaproto report train1 --json | jq .by_model
\b
Hosts on several machines: keep what each of them knows, and put it together.
  ssh h0 inaproto status --json > h0.json       (and so on; also the switch's)
  inaproto report train1 --from h0.json --from h1.json --from switch.json

Host daemons remember their last 64 jobs, and the switch at which hosts meet as many, until they are started
anew; what status --json wrote can be kept for ever. All hosts of a job end the same all-reduces, so one host
knows all shares.

Exit status: 0; 1 if no daemon knows the job, or one gave no answer; 2 if the command is wrong.
"""


@click.command(short_help="What in-network sums were worth to a job.", epilog=_EPILOG)
@click.argument("job", required=False)
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Ask all daemons whose sockets are here."
)
@click.option(
    "--socket", "sockets", type=click.Path(path_type=Path), multiple=True, help="Ask this daemon; repeatable."
)
@click.option(
    "--control",
    "controls",
    multiple=True,
    metavar="tls://NAME@ADDRESS:PORT",
    help="Ask this switch, with --tls.",
)
@click.option("--tls", type=click.Path(path_type=Path), help="Directory of an operator's certificate.")
@click.option(
    "--controller", "controllers", multiple=True, help="Socket or http:// of a controller; repeatable."
)
@click.option(
    "--from",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="What inaproto status --json wrote, instead of daemons; repeatable.",
)
@click.option("--run", type=int, help="Id of a run of this name, from --json; by default the last one.")
@click.option(
    "--link-gbit",
    type=FiniteRange(LINK_GBIT_MIN, LINK_GBIT_MAX),
    help="Rate of a host's link, for the model.",
)
@click.option("--hop-us", type=FiniteRange(0, HOP_US_MAX), help="Latency of a hop, for the model.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one page there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def report(job: str | None, **asked: Any) -> None:
    """Say what share of JOB was summed where, what time that saved, and why it was not more.

    The saving is told twice: by NetReduce's cost model, against a ring of the job's hosts, and as it was
    measured, against all-reduces of the same size that the hosts summed. Without JOB, the jobs that are known
    are listed.
    """
    guarded(lambda: _report(job, **asked))


def _report(
    job: str | None,
    *,
    directory: Path | None,
    sockets: tuple[Path, ...],
    controls: tuple[str, ...],
    tls: Path | None,
    controllers: tuple[str, ...],
    files: tuple[Path, ...],
    run: int | None,
    link_gbit: float | None,
    hop_us: float | None,
    html: Path | None,
    as_json: bool,
) -> None:
    statuses, problems = _read(files) if files else _ask(directory, sockets, controls, tls)
    for problem in problems:
        click.echo(f"inaproto report: {problem}", err=True)
    if job is None:
        _list(statuses, as_json=as_json)
        if problems and not statuses.hosts and not statuses.switches:
            sys.exit(EXIT_FAILED)  # nobody has answered: that is no list of all jobs
        return
    found = _document(job, statuses, run, controllers, link_gbit=link_gbit, hop_us=hop_us)
    if html is not None:
        from inaproto_controller.report.page import page

        try:
            html.write_text(page(found))
        except OSError as error:
            raise ConfigError(f"--html {html}: {error.strerror}") from None
    with unread():
        if as_json:
            click.echo(json.dumps(found, indent=2))
        elif html is None:
            from inaproto_controller.report.words import text

            click.echo("\n".join([*text(found), *found["notes"]]))
        else:
            click.echo(f"wrote {html}")


def _document(
    job: str,
    statuses: Statuses,
    run: int | None,
    controllers: tuple[str, ...],
    *,
    link_gbit: float | None,
    hop_us: float | None,
) -> dict[str, Any]:
    from importlib.metadata import version

    from inaproto_controller.report.document import document
    from inaproto_controller.report.savings import links_of
    from inaproto_controller.report.words import notes, verdict

    rings = statuses.rings(job, run)
    if not rings:
        raise click.ClickException(_unknown(job, statuses, run))
    links = links_of(rings, statuses.switches, gbit=link_gbit, hop_us=hop_us)
    known = _of_controller(job, controllers)
    found = document(job, rings, statuses, links, controller=known, version=version("inaproto"))
    return found | {"verdict": verdict(found), "notes": list(notes(found))}


def _unknown(job: str, statuses: Statuses, run: int | None) -> str:
    lives = statuses.rings(job)
    if run is not None and lives:
        runs = ", ".join(map(str, lives[0].runs))
        return f"no host knows a run {run} of job {job!r}; known: {runs}"
    others = statuses.jobs()
    known = f"known: {', '.join(others)}" if others else "none has had any since it was started"
    return f"no host that was asked has summed anything for a job {job!r}; {known}"


def _list(statuses: Statuses, *, as_json: bool) -> None:
    names = statuses.jobs()
    with unread():
        if as_json:
            click.echo(json.dumps({"jobs": names}))
        else:
            click.echo(
                "\n".join(names) if names else "no host that was asked has had a job since it was started"
            )


def _read(files: tuple[Path, ...]) -> tuple[Statuses, list[str]]:
    from inaproto_controller.report.records import Statuses

    told = []
    for path in files:
        try:
            told.append(json.loads(path.read_text()))
            Statuses.of(told[-1:])
        except RecursionError:
            raise ConfigError(f"--from {path}: is no JSON that a daemon writes: it is too deep") from None
        except (OSError, ValueError, ConfigError) as error:
            raise ConfigError(f"--from {path}: {error}") from None
    return Statuses.of(told), []


def _ask(
    directory: Path | None, sockets: tuple[Path, ...], controls: tuple[str, ...], tls: Path | None
) -> tuple[Statuses, list[str]]:
    import trio

    from inaproto.client.run_directory import run_directory
    from inaproto.daemon.net.control_address import door_for_operator
    from inaproto.daemon.observe.status import ask_daemons
    from inaproto_controller.report.records import Statuses

    if directory is None and not sockets and not controls:
        directory = run_directory(os.environ)
    doors = [door_for_operator(control, tls) for control in controls]
    found = trio.run(ask_daemons, directory, sockets, doors)
    return Statuses.of([found.as_dict()]), found.problems


def _of_controller(job: str, controllers: tuple[str, ...]) -> dict[str, Any] | None:
    """What it says of a job that was submitted to it; None: it was not asked, or does not know it."""
    if not controllers:
        return None
    from inaproto_controller.service.job_client import ControllerRefused, JobClient

    try:
        return JobClient(controllers).job(job)
    except ControllerRefused as error:
        if error.code == "no_such_job":
            return None
        raise
