"""``inaproto run``: start the processes of a job, and the daemons that they need."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported
from inaproto.option_types import FiniteRange, ReportFile

if TYPE_CHECKING:
    from inaproto.launch.plan import Wish

EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
KEY_BYTES_MAX: Final = 4096

_EPILOG: Final = """
Examples.

\b
  inaproto run -n 4 -- python train.py --epochs 3         4 ranks here, and daemons for them
  inaproto run -n 4 --daemons 4 -- python train.py        as if on 4 machines: the switch sums
  inaproto run -n 4 --daemons 4 --path chain -- python train.py
  inaproto run -n 2 --dir /run/inaproto -- ./train.sh     by the daemons that run there
  inaproto run -n 8 --backend none -- python train.py     torch's own all-reduces stay its own

\b
On several machines, each with a host daemon that runs already: the same command on each of them,
  INAPROTO_KEY=... inaproto run --job bert --hosts a,b --host-index 0 -n 8 -- python train.py
  INAPROTO_KEY=... inaproto run --job bert --hosts a,b --host-index 1 -n 8 -- python train.py
or by Slurm, one launcher on each:
  srun --ntasks-per-node=1 inaproto run --hosts "$SLURM_JOB_NODELIST" -n 8 -- python train.py

\b
Each process finds in its environment, for torch:
  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
and for inaproto.connect(), which needs no arguments then:
  INAPROTO_JOB INAPROTO_RANK INAPROTO_SIZE INAPROTO_KEY INAPROTO_HOST_SOCKET

When a rank ends badly the others are ended, and it is named. Ctrl-C goes to all as SIGINT; a second one
kills. Whatever happens to this command, no process, socket or directory stays.

Exit status: that of the script (of the rank that failed first), 128 and the signal's number if one ended it;
127 if there is no such program, 126 if it cannot be executed; 1 if daemons do not come up; 2 if an option is
wrong. docs/launching.md has more.
"""


@click.command(
    epilog=_EPILOG,
    short_help="Run a script in N processes, with all that they need.",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.option("-n", "--ranks", type=int, default=1, show_default=True, help="Processes on this machine.")
@click.option(
    "--hosts", metavar="A,B,...|FILE", help="Machines of the job, -n processes on each; this runs its part."
)
@click.option(
    "--host-index", type=int, help="Which of --hosts this one is.  [default: by its name, or Slurm's]"
)
@click.option("--job", "name", help="Name of the job.  [default: $INAPROTO_JOB, else a new one]")
@click.option(
    "--path",
    type=click.Choice(["auto", "chain", "overlay", "ring", "shared"]),
    help="How sums travel (help of inaproto.connect).  [default: $INAPROTO_PATH, else auto]",
)
@click.option(
    "--backend",
    "backends",
    metavar="gloo,nccl|none",
    help="Backends of torch whose all-reduces go by inaproto.  [default: $INAPROTO_TORCH, else gloo]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of daemons; where none is there, they are started there.  [default: those that run, "
    "else new ones in a directory of their own]",
)
@click.option(
    "--daemons", type=int, help="Start so many host daemons, as if each were a machine.  [default: 1]"
)
@click.option(
    "--frames",
    type=click.Choice(["shm", "sockets"]),
    default="shm",
    show_default=True,
    help="How frames go between daemons that are started: memory that they share, or UNIX sockets.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Configuration file for daemons that are started ([switch], [host]).",
)
@click.option(
    "--host", "host_name", metavar="NAME", help="Use this one of the host daemons that run here alone."
)
@click.option("--master-addr", help="MASTER_ADDR, for torch.  [default: the first of --hosts]")
@click.option("--master-port", type=int, help="MASTER_PORT, for torch.  [default: one that is free]")
@click.option(
    "--label/--no-label",
    "is_labelled",
    default=None,
    help="Put [RANK] before each line that a rank prints.  [default: where there are several]",
)
@click.option("--elastic", "is_elastic", is_flag=True, help="Let the others go on when a rank ends badly.")
@click.option(
    "--grace",
    "grace_s",
    type=FiniteRange(0),
    default=10.0,
    show_default=True,
    help="Seconds from a request to end to SIGKILL.",
)
@click.option(
    "--log-dir", type=click.Path(path_type=Path), help="Keep the logs of daemons that are started there."
)
@click.option(
    "--by-input",
    "is_by_input",
    is_flag=True,
    help="Read the key from the first line of the standard input, and end when that ends: for those that "
    "start this on other machines.",
)
@click.option("--quiet", "-q", "is_quiet", is_flag=True, help="Say only what went wrong.")
@click.option(
    "--json",
    "summary",
    type=ReportFile(),
    metavar="FILE",
    help="Write how it went as JSON; - is the standard output.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def run(
    *,
    ranks: int,
    hosts: str | None,
    host_index: int | None,
    name: str | None,
    path: str | None,
    backends: str | None,
    directory: Path | None,
    daemons: int | None,
    frames: str,
    config: Path | None,
    host_name: str | None,
    master_addr: str | None,
    master_port: int | None,
    is_labelled: bool | None,
    is_elastic: bool,
    grace_s: float,
    log_dir: Path | None,
    is_by_input: bool,
    is_quiet: bool,
    summary: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in N processes, the ranks of a job, whose all-reduces are summed by inaproto.

    Daemons that run already are used; where there are none, a switch and a host daemon are started for this
    run. A script of PyTorch that names gloo runs as it is: its all-reduces are redirected; of one that names
    nccl, with `--backend nccl`. `python` is that of inaproto, unless another environment is active.
    """
    from inaproto.launch import plan  # here: a list of all commands needs none of it
    from inaproto.launch.daemons import Wanted
    from inaproto.launch.processes import require_pidfd
    from inaproto.launch.run import Manner, launch

    try:
        require_pidfd()
        environment = dict(os.environ) | (_key_by_input() if is_by_input else {})
        wish = _wish(
            environment, command, ranks, hosts, host_index, name, path, backends, master_port, daemons
        )
        wish = replace(wish, master_address=master_addr or "")
        wanted = Wanted(
            None if directory is None else directory.expanduser().absolute(),
            daemons,
            "shm" if frames == "shm" else "frames",
            None if config is None else config.absolute(),
            host_name or "",
            may_start=len(wish.hosts) < 2 and not host_name,
        )
        if log_dir is not None:
            try:
                log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--log-dir: cannot make {log_dir}: {error.strerror}") from error
        manner = Manner(
            is_labelled=ranks > 1 if is_labelled is None else is_labelled,
            grace_s=grace_s,
            is_elastic=is_elastic,
            is_quiet=is_quiet,
            summary=summary or "",
            logs=None if log_dir is None else log_dir.absolute(),
            ends_with_input=is_by_input,
        )
        sys.exit(launch(wish, wanted, manner, environment))
    except plan.CommandNotFound as error:
        _fail(error, error.status)
    except (InvariantBroken, LocalMisuse):
        raise
    except InaprotoError as error:
        _fail(error, EXIT_WRONG if isinstance(error, ConfigError | Unsupported) else EXIT_FAILED)
    except OSError as error:
        _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _key_by_input() -> dict[str, str]:
    """Raises ``ConfigError``."""
    from inaproto.client.environment import KEY_VARIABLE

    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1)  # what follows is not ours
        line += data
        if not data or len(line) > KEY_BYTES_MAX:
            raise ConfigError("--by-input: the standard input has no line with a key")
    return {KEY_VARIABLE: line.decode("utf-8", "replace").strip()}


def _fail(error: Exception, status: int) -> None:
    for line in str(error).splitlines():
        click.echo(f"inaproto run: {line}", err=True)
    sys.exit(status)


def _wish(
    environment: Mapping[str, str],
    command: tuple[str, ...],
    ranks: int,
    hosts_text: str | None,
    host_index: int | None,
    name: str | None,
    path: str | None,
    backends: str | None,
    master_port: int | None,
    daemons: int | None,
) -> Wish:
    """What was asked for, checked. Raises ``ConfigError``."""
    from inaproto.client.arguments import check_arguments
    from inaproto.client.environment import JOB_VARIABLE, KEY_VARIABLE, discover
    from inaproto.client.wishes import check_wishes
    from inaproto.core.rendezvous.rules import JOB_NAME
    from inaproto.launch import plan
    from inaproto.torch.wishes import LAUNCHED, TAKEN_VARIABLE

    here = Path.cwd()
    if not command:
        raise ConfigError("no command; for example: inaproto run -n 2 -- python train.py")
    if ranks < 1:
        raise ConfigError(f"-n: {ranks} is not allowed; a job has one rank at least")
    if daemons is not None and not 0 < daemons <= plan.RANKS_MAX:
        raise ConfigError(f"--daemons: {daemons} is not allowed; it must be 1 to {plan.RANKS_MAX}")
    if master_port is not None and not 0 < master_port < 1 << 16:
        raise ConfigError(f"--master-port: {master_port} is no port; it must be 1 to 65535")
    hosts = () if hosts_text is None else plan.parse_hosts(hosts_text, here)
    if host_index is not None and not hosts:
        raise ConfigError("--host-index: is for a job of several machines; name them by --hosts")
    index = plan.own_index(hosts, host_index, environment, socket.gethostname()) if hosts else 0
    size = ranks * max(1, len(hosts))
    if size > plan.RANKS_MAX:
        raise ConfigError(
            f"-n: {size} ranks are too many; a switch takes {plan.RANKS_MAX} of a job at most (--ranks-max)"
        )
    key = environment.get(KEY_VARIABLE, "")
    try:
        # Other launchers' names are for all their processes alike: here one start may be one of several.
        known = discover(environment, ("job",)).job if len(hosts) > 1 else environment.get(JOB_VARIABLE)
        job = name or known
        check_wishes(path, True, False, environment)
        if not job and len(hosts) > 1:
            raise ConfigError("--hosts: give --job NAME (or INAPROTO_JOB), the same on all machines")
        job = job or f"run-{secrets.token_hex(4)}"
        if not JOB_NAME.fullmatch(job):
            raise ConfigError(
                f"--job: {job!r:.200} is no name: 1 to 128 letters, digits, '.', '_' or '-', the first a "
                "letter or digit"
            )
        check_arguments(job, 0, size, key, None, check_wishes(path, True, False, environment))
    except LocalMisuse as error:
        raise ConfigError(str(error).replace("connect: ", "", 1)) from None
    if not key and len(hosts) < 2:
        key = secrets.token_hex(32)
    return plan.Wish(
        plan.find_command(command, environment, here, sys.executable),
        ranks,
        job,
        key,
        hosts,
        index,
        path or "",
        plan.parse_backends(backends or environment.get(TAKEN_VARIABLE) or ",".join(LAUNCHED)),
        master_port or (plan.shared_port(job) if len(hosts) > 1 else _free_port()),
    )


def _free_port() -> int:
    """A TCP port of this machine that nobody has now. Raises ``ConfigError``."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        raise ConfigError(f"--master-port: no port is free ({error.strerror}); name one") from None
