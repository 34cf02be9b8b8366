"""``inaproto job``: submit, list, show, cancel and watch the jobs of a controller, and say who runs where."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse
from inaproto.option_types import FiniteRange, WholeGroup
from inaproto.pasted import pasted
from inaproto.reader_gone import unread

if TYPE_CHECKING:
    from rich.table import Table

    from inaproto_controller.service.job_client import JobClient

API_VARIABLE: Final = "INAPROTO_JOB_API"
SUBMISSION_VARIABLE: Final = "INAPROTO_JOB_SUBMISSION"
EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_STOPPED: Final = 130
WAIT_S: Final = 20.0
RETRY_S: Final = 1.0
MOVE_WAIT_S_MAX: Final = 60.0
SLURM_WAIT_S: Final = 60.0
_OVER: Final = ("ended", "cancelled", "failed")

F = TypeVar("F", bound=Callable[..., Any])

_EPILOG: Final = f"""
Where the controller is: --dir DIRECTORY of its socket, or --controller PATH or http://127.0.0.1:PORT
(of a pair, both: the one that leads answers). Else ${API_VARIABLE}, with blanks between, or the
directory that daemons have by default.

\b
Examples:
  inaproto job submit train1 --hosts 4 --ranks-per-host 8 --model opt-125m-4
  inaproto job submit train1 --on h2,h3
  inaproto job submit train1 --hosts 4 -- python train.py
  inaproto job list
  inaproto job watch train1
  inaproto job env train1 --host h2
  inaproto job cancel train1
  inaproto job move train1 --root spine1

Exit status: 0; 1 if the controller cannot be reached or says no; 2 if the command is wrong; 130 after Ctrl-C.
"""


@click.group(cls=WholeGroup, short_help="Submit, list, show, cancel and watch jobs.", epilog=_EPILOG)
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


_SUBMIT_EPILOG: Final = """
\b
Examples:
  inaproto job submit train1 --hosts 4 --ranks-per-host 8               the controller chooses the hosts
  inaproto job submit train1 --on h2,h3                                 on these, ranks in this order
  inaproto job submit train1 --hosts 4 -- python train.py               and run where it is placed
  inaproto job submit train1 --hosts 4 --via 'ssh {host}' -- python train.py

In the script of a Slurm job, before srun (docs/clusters.md):

\b
  part=$(inaproto job submit --slurm) || exit
  eval "$part"

\b
With a command:
  hosts whose daemons run on this machine get their processes here, others by --via, a command that
  runs one more word, a line of shell, on the machine of {host}, and hands its input on:
    --via 'ssh {host}'    --via 'srun -N1 -n1 --overlap -w {host} sh -c'
  The ranks' key goes by that input. inaproto has the same path there, and so has the directory of now.
  Ctrl-C ends all of it and the job; the exit status is that of the script, as of inaproto run.
"""


@job.command(short_help="Submit a job, and run it if a command is given.", epilog=_SUBMIT_EPILOG)
@click.argument("name", required=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--hosts", type=click.IntRange(1), help="Hosts it wants, of those that are free.")
@click.option("--on", metavar="H0,H1,...", help="The hosts it wants, in the order of ranks; also h[0-3].")
@click.option(
    "--slurm",
    "is_of_slurm",
    is_flag=True,
    help="The nodes and tasks of the Slurm job in whose script this is; prints variables for a shell.",
)
@click.option("--ranks-per-host", type=click.IntRange(1), help="Ranks on each.  [default: 1]")
@click.option("--model", help="Measured model that it is like, for its tree; a wrong name lists all.")
@click.option(
    "--wait",
    "wait_s",
    type=FiniteRange(0),
    help="Return when it has its hosts; after so many seconds cancel it.  [default: 60 with --slurm, else "
    "return at once]",
)
@click.option(
    "--submission",
    envvar=SUBMISSION_VARIABLE,
    help=f"Secret by which it can be submitted again, 32 characters or more; also ${SUBMISSION_VARIABLE}.",
)
@click.option("--via", default="", metavar="COMMAND", help="How other machines are reached: 'ssh {host}'.")
@click.option(
    "--host-dir",
    type=click.Path(path_type=Path),
    help="Directory of host daemons, here and there.  [default: here --dir, else that of each machine]",
)
@click.option("--path", help="As of inaproto run.")
@click.option("--backend", help="As of inaproto run.")
@click.option(
    "--elastic",
    is_flag=True,
    help="When ranks or a host are lost the others go on; the job is over when all its seats are. With a "
    "command, as of inaproto run.",
)
@_common
def submit(
    *,
    name: str | None,
    words: tuple[str, ...],
    hosts: int | None,
    on: str | None,
    is_of_slurm: bool,
    ranks_per_host: int | None,
    model: str | None,
    wait_s: float | None,
    submission: str | None,
    via: str,
    host_dir: Path | None,
    path: str | None,
    backend: str | None,
    elastic: bool,
    **where: Any,
) -> None:
    """Submit job NAME. It is promised when this returns: no crash of the controller loses it.

    Its token, which its processes show as their key, is printed. The same command with the same --submission
    again is the same job with the same token, so it can be repeated when an answer is lost.

    With a COMMAND its processes are started where the job is placed, when it is; this returns when they have
    ended, and the job is over then.
    """
    from inaproto.launch.plan import expand_hosts
    from inaproto_controller.service import slurm_part
    from inaproto_controller.service.submitting import Submission, submit_and_wait
    from inaproto_controller.service.tokens import new_submission

    with _guarded():
        if (via or host_dir or path or backend) and not words:
            raise ConfigError("--via, --host-dir, --path, --backend: are for a command; -- COMMAND")
        if words and (where["as_json"] or is_of_slurm):
            raise ConfigError("--json, --slurm: are for a submission without a command, which has the output")
        named = () if on is None else expand_hosts(on)
        if is_of_slurm:
            part = slurm_part.allocation_of(os.environ)
            name = name or slurm_part.job_name(os.environ)
            named, ranks_per_host = named or part.hosts, ranks_per_host or part.ranks_per_host
            wait_s = SLURM_WAIT_S if wait_s is None else wait_s
        if name is None:
            raise ConfigError(f"no name: {_again('submit', 'NAME', '--hosts', '4', **where)}")
        if (hosts is None) is not bool(named):
            raise ConfigError("--hosts, --on: say how many hosts, or which")
        fields: dict[str, Any] = {
            "ranks_per_host": ranks_per_host or 1,
            "model": model,
            "on": named,
            "elastic": elastic,
            "submission": submission or new_submission(),
            "cancelling": _again("cancel", name, **where),
        }
        asked_for = Submission(_client(**where), name, len(named) or hosts or 0, **fields)
        # Who can submit it again, and is not waited for, finds it as it is.
        is_repeatable = submission is not None and wait_s is None and not words
        status = 0
        with nullcontext() if is_repeatable else asked_for.kept_at_the_end():
            if wait_s is None:
                found = asked_for.ask()
            else:
                found = submit_and_wait(asked_for, wait_s=wait_s, tell=_tell_waiting)
            if words:
                from inaproto_controller.service.job_run import Asked, run_job

                pairs = (("--path", path), ("--backend", backend))
                options = [word for option, text in pairs if text for word in (option, text)]
                options += ["--elastic"] if elastic else []
                asked = Asked(words, via, host_dir or where["directory"], host_dir, tuple(options), elastic)
                status = run_job(asked_for, found, asked)
            elif where["as_json"]:
                _print_json(found)
            elif is_of_slurm:
                click.echo(slurm_part.shell(name, found["token"]))
                click.echo(f"job {name} is {_told(found['job'])}", err=True)
            else:
                click.echo(f"job {name} is {_state(found['job'])}")
                click.echo(f"token {found['token']}")
                click.echo(f"next: {_again('watch', name, **where)}", err=True)
        sys.exit(status)


@job.command("list", short_help="List jobs.")
@click.option("--all", "every", is_flag=True, help="Also those that are over.")
@_common
def list_jobs(every: bool, **where: Any) -> None:
    """List jobs in the order of their submission; how many are over is said where these are not listed."""
    with _guarded():
        client = _client(**where)
        jobs = client.jobs(live=not every)
        if where["as_json"]:
            _print_json({"jobs": jobs})
            return
        counts = {} if every else client.status()["jobs"]
        from rich.console import Console

        with unread():
            Console(highlight=False, soft_wrap=True).print(jobs_table(jobs) if jobs else "no jobs")
        if over := sum(counts.get(state, 0) for state in _OVER):
            said = "1 job is over" if over == 1 else f"{over} jobs are over"
            click.echo(f"{said}: {_again('list', '--all', **where)}", err=True)


def jobs_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """One row a job."""
    from rich.table import Table

    from inaproto.plain_cells import plain

    table = Table(box=None, pad_edge=False)
    for column in ("number", "job", "state", "hosts", "ranks", "tree", "why"):
        table.add_column(column)
    for one in jobs:
        tree = one["tree"]["root"] if one["tree"] else "-"
        ranks = one["hosts_wanted"] * one["ranks_per_host"]
        row = (one["number"], one["name"], one["state"], one["hosts_wanted"], ranks, tree, one["why"])
        table.add_row(*plain(*row))
    return table


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
            "wants": f"{found['hosts_wanted']} hosts, {found['ranks_per_host']} ranks on each"
            + (", goes on without lost ones" if found.get("elastic") else ""),
            "model": found["model"] or "not said",
            "hosts": ranks_by_host(found) or "none",
            "tree": _lacking(found)
            if tree is None
            else f"root {tree['root']}; switches {', '.join(tree['switches'])}",
            "group": "none" if found["group"] is None else str(found["group"]),
        }
        if found.get("planned"):
            rows["planned"] = _planned(found["planned"])
        if found.get("places"):
            rows["places"] = _places(found["places"])
        for key, value in rows.items():
            click.echo(f"{key + ':':<7} {value}")


def _planned(told: Mapping[str, Any]) -> str:
    if "root" not in told:
        return f"hosts alone: {told['reason']}"
    carried = ", ".join(f"{one['from']} > {one['to']} {one['per_byte']}" for one in told["carried"])
    by = "hosts and tree together" if told["by"] == "paring" else f"hosts alone: {told['reason']}"
    return f"{by}; {told['rate_gbit_s']} Gbit/s from each host; bytes on links per byte: {carried}"


def _lacking(found: Mapping[str, Any]) -> str:
    return f"none: {found['no_tree']}" if found.get("no_tree") else "none"


@job.command(
    "env",
    short_help="Print a host's part of a job.",
    epilog='Example, on h2: eval "$(inaproto job env train1 --host h2)"',
)
@click.argument("name")
@click.option("--host", required=True, help="Name of its host daemon.")
@click.option(
    "--host-dir",
    type=click.Path(path_type=Path),
    help="Directory of that host daemon, on its machine.  [default: --dir]",
)
@_common
def show_part(name: str, host: str, host_dir: Path | None, **where: Any) -> None:
    """Print what the processes of job NAME on a host need: variables for a shell, and the command for it.

    The token is not among them: the controller has only its hash. job submit printed it.
    """
    from inaproto_controller.service.job_part import part_of, shell

    with _guarded():
        part = part_of(_client(**where).job(name), host, watch=_again("watch", name, **where))
        if where["as_json"]:
            _print_json(part)
        else:
            click.echo(shell(part, host_dir or where["directory"]))


@job.command(
    short_help="Cancel a job.",
    epilog="""Examples.

\b
  inaproto job cancel train1
  inaproto job cancel --slurm         in Slurm's EpilogSlurmctld: the job that submit --slurm made, if any
""",
)
@click.argument("name", required=False)
@click.option(
    "--slurm",
    "is_of_slurm",
    is_flag=True,
    help=f"That of the Slurm job that ends, if any; waits up to {SLURM_WAIT_S:g} s for the controller.",
)
@_common
def cancel(name: str | None, is_of_slurm: bool, **where: Any) -> None:
    """Cancel job NAME. It stays cancelled when this returns; a job that is over stays as it was."""
    from inaproto_controller.service import slurm_part
    from inaproto_controller.service.submitting import cancel_if_there

    with _guarded():
        if is_of_slurm is (name is not None):
            raise ConfigError("say which job: NAME, or --slurm in an epilog of Slurm")
        if name is None:
            name = slurm_part.job_name(os.environ)
            found = cancel_if_there(_client(**where), name, wait_s=SLURM_WAIT_S)
        else:
            found = _client(**where).cancel(name)
        if where["as_json"]:
            _print_json(found)
        elif found is not None:
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
    type=FiniteRange(0, MOVE_WAIT_S_MAX),
    default=30.0,
    show_default=True,
    help="Seconds to wait until it is there.",
)
@_common
def move(name: str, root: str | None, anywhere: bool, wait_s: float, **where: Any) -> None:
    """Move the tree of job NAME, which runs on the path shared or has its tree in SHARP, to another root.

    Its all-reduces go on by its hosts meanwhile; no result changes. The wish outlives the controller and, on
    the path shared, the job: a job of that name goes there until --anywhere is said. Where that switch has no
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
        trees, sharp = _again("trees", **where), _again("show", name, **where)
        click.echo(f"inaproto: job {name} is not at {root} yet; why: {trees} (SHARP: {sharp})", err=True)
        sys.exit(EXIT_FAILED)


def _places(places: dict[str, Any]) -> str:
    """Of a job whose tree is in SHARP, or is to be."""
    hosts = places["hosts"]
    said = f"in SHARP, {places['held']} of {hosts} hosts hold one, {places['attached']} are attached"
    return f"{said}; wished root {places['wished']}" if places["wished"] else said


def _took(move: dict[str, Any] | None, root: str | None) -> str:
    if move is None or move["new"] != root:
        return ""
    parts = ("drain", "release", "barrier", "acquire", "install")
    said = ", ".join(f"{part} {move[part + '_s'] * 1000:.0f}" for part in parts if part + "_s" in move)
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


def _tell_waiting(why: str) -> None:
    click.echo(f"inaproto job: {why}; waiting for it", err=True)


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
    named = [one if "://" in one else Path(one) for one in controllers]
    return pasted(f"job {words[0]}", *words[1:], dir=directory, controller=named)


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
