"""``inaproto job``: submit, list, show, cancel and watch the jobs of a controller, and say who runs where."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse
from inaproto.reader_gone import unread

if TYPE_CHECKING:
    from inaproto_controller.service.job_client import JobClient

API_VARIABLE: Final = "INAPROTO_JOB_API"
SUBMISSION_VARIABLE: Final = "INAPROTO_JOB_SUBMISSION"
EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_STOPPED: Final = 130
WAIT_S: Final = 20.0
RETRY_S: Final = 1.0
MOVE_WAIT_S_MAX: Final = 60.0
_OVER: Final = ("ended", "cancelled", "failed")

F = TypeVar("F", bound=Callable[..., Any])

_EPILOG: Final = f"""
Where the controller is: --dir DIRECTORY of its socket, or --controller PATH or http://127.0.0.1:PORT
(of a pair, both: the one that leads answers). Else ${API_VARIABLE}, with blanks between, or the
directory that daemons have by default.

\b
Examples:
  inaproto job submit train1 --hosts 4 --ranks-per-host 8 --model bert-base-4
  inaproto job list
  inaproto job watch train1
  inaproto job env train1 --host h2
  inaproto job cancel train1
  inaproto job move train1 --root spine1

Exit status: 0; 1 if the controller cannot be reached or says no; 2 if the command is wrong; 130 after Ctrl-C.
"""


@click.group(short_help="Submit, list, show, cancel and watch jobs.", epilog=_EPILOG)
def job() -> None:
    """Jobs of a controller: they get hosts and an aggregation tree, in the order of their submission.

    A job is submitted, waits in the queue (`show` says for what), is placed on hosts, runs when all its ranks
    have joined there, and is over when it has ended, failed or was cancelled.
    """


def _common(command: F) -> F:
    for option in (
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path),
            help="Directory of the controller's socket.",
        ),
        click.option(
            "--controller",
            "controllers",
            multiple=True,
            help="Socket or http:// of a controller; repeatable.",
        ),
        click.option("--json", "as_json", is_flag=True, help="JSON, for programs."),
    ):
        command = option(command)
    return command


@job.command(short_help="Submit a job.", epilog="Example: inaproto job submit train1 --hosts 4")
@click.argument("name")
@click.option("--hosts", type=click.IntRange(1), required=True, help="Hosts it wants.")
@click.option("--ranks-per-host", type=click.IntRange(1), default=1, show_default=True, help="Ranks on each.")
@click.option("--model", help="Measured model that it is like, for its tree; a wrong name lists all.")
@click.option(
    "--submission",
    envvar=SUBMISSION_VARIABLE,
    help=f"Secret by which it can be submitted again, 32 characters or more; also ${SUBMISSION_VARIABLE}.",
)
@_common
def submit(
    name: str, hosts: int, ranks_per_host: int, model: str | None, submission: str | None, **where: Any
) -> None:
    """Submit job NAME. It is promised when this returns: no crash of the controller loses it.

    Its token, which its processes show as their key, is printed. The same command with the same --submission
    again is the same job with the same token, so it can be repeated when an answer is lost.
    """
    from inaproto_controller.service.tokens import new_submission

    with _guarded():
        found = _client(**where).submit(
            name,
            hosts,
            ranks_per_host=ranks_per_host,
            model=model,
            submission=submission or new_submission(),
        )
        if where["as_json"]:
            _print_json(found)
        else:
            click.echo(f"job {name} is {_state(found['job'])}")
            click.echo(f"token {found['token']}")
            click.echo(f"next: {_again('watch', name, **where)}", err=True)


@job.command("list", short_help="List jobs.")
@click.option("--all", "every", is_flag=True, help="Also those that are over.")
@_common
def list_jobs(every: bool, **where: Any) -> None:
    """List jobs in the order of their submission."""
    with _guarded():
        jobs = _client(**where).jobs(live=not every)
        if where["as_json"]:
            _print_json({"jobs": jobs})
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in ("number", "job", "state", "hosts", "ranks", "tree", "why"):
            table.add_column(column)
        for one in jobs:
            tree = one["tree"]["root"] if one["tree"] else "-"
            ranks = one["hosts_wanted"] * one["ranks_per_host"]
            row = (one["number"], one["name"], one["state"], one["hosts_wanted"], ranks, tree, one["why"])
            table.add_row(*map(str, row))
        with unread():
            Console(highlight=False, soft_wrap=True).print(table if jobs else "no jobs")


@job.command(short_help="Show a job.", epilog="Example: inaproto job show train1 --json")
@click.argument("name")
@_common
def show(name: str, **where: Any) -> None:
    """Show job NAME: state, hosts with their ranks, tree, and why it waits if it does.

    Of several jobs of that name the one that is not over, or else the last.
    """
    from inaproto_controller.service.job_part import ranks_by_host

    with _guarded():
        found = _client(**where).job(name)
        if where["as_json"]:
            _print_json(found)
            return
        at = datetime.fromtimestamp(found["submitted_at"], UTC).isoformat(timespec="seconds")
        tree = found["tree"]
        rows = {
            "job": f"{found['name']} (number {found['number']}, submitted {at})",
            "state": _state(found),
            "wants": f"{found['hosts_wanted']} hosts, {found['ranks_per_host']} ranks on each",
            "model": found["model"] or "not said",
            "hosts": ranks_by_host(found) or "none",
            "tree": "none"
            if tree is None
            else f"root {tree['root']}; switches {', '.join(tree['switches'])}",
            "group": "none" if found["group"] is None else str(found["group"]),
        }
        for key, value in rows.items():
            click.echo(f"{key + ':':<7} {value}")


@job.command(
    "env",
    short_help="Print a host's part of a job.",
    epilog='Example, on h2: eval "$(inaproto job env train1 --host h2)"',
)
@click.argument("name")
@click.option("--host", required=True, help="Name of its host daemon.")
@_common
def show_part(name: str, host: str, **where: Any) -> None:
    """Print what the processes of job NAME on a host need: variables for a shell, and the command for it.

    The token is not among them: the controller has only its hash. job submit printed it.
    """
    from inaproto_controller.service.job_part import part_of, shell

    with _guarded():
        part = part_of(_client(**where).job(name), host)
        if where["as_json"]:
            _print_json(part)
        else:
            click.echo(shell(part))


@job.command(short_help="Cancel a job.", epilog="Example: inaproto job cancel train1")
@click.argument("name")
@_common
def cancel(name: str, **where: Any) -> None:
    """Cancel job NAME. It stays cancelled when this returns; a job that is over stays as it was."""
    with _guarded():
        found = _client(**where).cancel(name)
        if where["as_json"]:
            _print_json(found)
        else:
            click.echo(f"job {name} is {_state(found)}")


@job.command(short_help="Follow a job.", epilog="Example: inaproto job watch train1 --json | jq .state")
@click.argument("name")
@_common
def watch(name: str, **where: Any) -> None:
    """Print job NAME whenever it changes, until it is over; one line each. It outlives the controller."""
    from inaproto_controller.service.job_client import ControllerUnreachable

    with _guarded():
        client, number, revision, trouble = _client(**where), None, -1, ""
        while True:
            try:
                found = client.job(name, after=revision, wait_s=WAIT_S if revision >= 0 else 0.0)
            except ControllerUnreachable as error:
                if revision < 0:
                    raise
                if str(error) != trouble:
                    click.echo(f"inaproto job: {error}; waiting for it", err=True)
                trouble = str(error)
                time.sleep(RETRY_S)
                continue
            trouble = ""
            if number not in (None, found["number"]):
                raise ConfigError(f"job {name!r} is over and forgotten; another one has its name now")
            if found["revision"] > revision:
                with unread():
                    click.echo(json.dumps(found) if where["as_json"] else f"{name}: {_told(found)}")
            number, revision = found["number"], found["revision"]
            if found["state"] in _OVER:
                return


@job.command(
    short_help="Show whose turn it is.", epilog="Example: inaproto job turns --json | jq '.[].turns'"
)
@_common
def turns(**where: Any) -> None:
    """Show the jobs that share switch memory by turns: whose turn it is, and who has had how many."""
    with _guarded():
        found = _client(**where).sharing()
        if where["as_json"]:
            _print_json(found)
            return
        if not found:
            click.echo(
                "no jobs share switch memory: those do that ask for path shared, at hosts with --controller"
            )
        for pool in found:
            click.echo(f"pool {pool['pool']}: {_whose(pool['turns']) or 'nobody has a turn'}")
            for name, one in pool["jobs"].items():
                known = one["step_operations"]
                step = "step not known yet" if known is None else f"step of {known} all-reduces"
                click.echo(f"  {name}: {one['turns']} turns, hosts {', '.join(one['hosts'])}, {step}")


@job.command(
    short_help="Move a running job's tree.", epilog="Example: inaproto job move train1 --root spine1"
)
@click.argument("name")
@click.option("--root", help="Switch at which its gradients are to be summed, from now on.")
@click.option("--anywhere", is_flag=True, help="Wherever the controller's plan has it, as before.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, MOVE_WAIT_S_MAX),
    default=30.0,
    show_default=True,
    help="Seconds to wait until it is there.",
)
@_common
def move(name: str, root: str | None, anywhere: bool, wait_s: float, **where: Any) -> None:
    """Move the tree of job NAME, which runs on the path shared, to another root switch.

    Its all-reduces go on by the ring of its hosts meanwhile; no result changes. The wish outlives the
    controller and the job: a job of that name goes there until --anywhere is said. Where that switch has no
    slot left, or cannot be reached, the job stays where it is until it can.
    """
    if (root is None) is not anywhere:
        raise click.UsageError("say --root SWITCH, or --anywhere")
    with _guarded():
        found = _client(**where).move(name, root or "", wait_s=0.0 if anywhere else wait_s)
        if where["as_json"]:
            _print_json(found)
        elif anywhere:
            click.echo(f"job {name} is summed wherever the plan has it")
        elif found["stands"]:
            click.echo(f"job {name} is summed at {root}{_took(found['move'], root)}")
    if not anywhere and not found["stands"]:
        click.echo(f"inaproto: job {name} is not at {root} yet; inaproto job trees says why", err=True)
        sys.exit(EXIT_FAILED)


def _took(move: dict[str, Any] | None, root: str | None) -> str:
    if move is None or move["new"] != root:
        return ""
    parts = ("drain", "release", "barrier", "acquire", "install")
    said = ", ".join(f"{part} {move[part + '_s'] * 1000:.0f}" for part in parts)
    return f": {move['total_s'] * 1000:.0f} ms ({said})"


@job.command(short_help="Show where jobs are summed.", epilog="Example: inaproto job trees --json | jq .jobs")
@_common
def trees(**where: Any) -> None:
    """Show at which root the jobs on the path shared are summed, and what hinders those that are not."""
    with _guarded():
        found = _client(**where).trees()
        if where["as_json"]:
            _print_json(found)
            return
        if not found["root"]:
            click.echo("no root of a fabric reports trees: it does, if it is started with --controller")
        for name, one in found["jobs"].items():
            place = one["root"] if one["ring"] == "standing" else one["ring"]
            wished = f", wished: {one['wished']}" if one["wished"] else ""
            reason = f": {one['reason']}" if one["reason"] else ""
            hosts = ", ".join(one["hosts"])
            click.echo(f"{name}: {place}{reason}, hosts {hosts}, slots {one['slots']}{wished}")
        for name, switch in found["switches"].items():
            lent = ", ".join(lease["job"] for lease in switch["lent"]) or "nobody"
            away = ", does not answer" if switch["is_lost"] else ""
            count = f"{len(switch['lent'])} of {switch['slots']} slots lent"
            click.echo(f"switch {name}: {count}, to {lent}{away}")


def _whose(standing: list[dict[str, Any]]) -> str:
    return "; ".join(
        f"turn {turn['epoch']} of {turn['job']}, all-reduces from {turn['first']}"
        + ("" if turn["until"] is None else f" to {turn['until'] - 1}")
        for turn in standing
    )


def _state(found: dict[str, Any]) -> str:
    return f"{found['state']}: {found['why']}" if found["why"] else str(found["state"])


def _told(found: dict[str, Any]) -> str:
    said = _state(found)
    if found["hosts"] and found["state"] not in _OVER:
        said += f", hosts {', '.join(found['hosts'])}"
        said += f", tree {found['tree']['root']}" if found["tree"] else ", no tree"
    return said


def _again(*words: str, directory: Path | None, controllers: tuple[str, ...], as_json: bool) -> str:
    """The command that asks the same controller for ``words``, to be pasted into a shell."""
    given = [] if directory is None else ["--dir", str(directory)]
    given += [word for controller in controllers for word in ("--controller", controller)]
    return shlex.join(["inaproto", "job", words[0], *given, *words[1:]])


def _client(directory: Path | None, controllers: tuple[str, ...], as_json: bool) -> JobClient:
    from inaproto.client.run_directory import run_directory
    from inaproto.daemon.net.names import JOBS_SOCKET
    from inaproto_controller.service.job_client import JobClient

    named = [*controllers, *([str(directory / JOBS_SOCKET)] if directory is not None else [])]
    if not named:
        named = os.environ.get(API_VARIABLE, "").split()
    return JobClient(named or [str(run_directory(os.environ) / JOBS_SOCKET)])


def _print_json(found: Any) -> None:
    with unread():
        click.echo(json.dumps(found, indent=2))


@contextmanager
def _guarded() -> Iterator[None]:
    """Errors that a person can act on become messages."""
    try:
        yield
    except (InvariantBroken, LocalMisuse):
        raise
    except InaprotoError as error:
        for line in str(error).splitlines():
            click.echo(f"inaproto: {line}", err=True)
        wrong = isinstance(error, ConfigError) or getattr(error, "code", "") == "bad_request"
        sys.exit(EXIT_WRONG if wrong else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_STOPPED)
