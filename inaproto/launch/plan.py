"""What ``inaproto run`` starts: checked before anything is, and told to each process by its environment."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.client.environment import (
    JOB_VARIABLE,
    KEY_VARIABLE,
    RANK_VARIABLE,
    SIZE_VARIABLE,
)
from inaproto.client.joining import SOCKET_VARIABLE
from inaproto.client.wishes import PATH_VARIABLE
from inaproto.errors import ConfigError
from inaproto.torch.wishes import BACKENDS, LAUNCHED, TAKEN_VARIABLE

RUN_VARIABLE: Final = "INAPROTO_RUN"
"""What all processes of one start have in their environment, and what these start, too: it finds them."""
RANKS_MAX: Final = 64
"""Ranks of a job that daemons take which are brought up here."""
HOSTS_FILE_BYTES_MAX: Final = 1 << 20
EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127
_PORTS: Final = range(20_000, 32_000)
"""From these is the MASTER_PORT of a job on several machines: below those that kernels give out."""
_ACTIVE: Final = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Set where an environment of Python is active."""
_BRACKETS: Final = re.compile(r"([^\[\],\s]*)\[([0-9,-]+)\]([^\[\],\s]*)")


class CommandNotFound(ConfigError):
    """The program is not there, or cannot be executed; ``status`` is what a shell would end with."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be started, checked."""

    command: tuple[str, ...]
    """The program, as a path, and its arguments."""
    ranks: int
    """Processes on this machine."""
    job: str
    key: str
    hosts: tuple[str, ...] = ()
    """Machines of the job, in the order of their ranks; empty: this one."""
    host_index: int = 0
    path: str = ""
    """By which the job is summed; empty: what the environment says."""
    backends: tuple[str, ...] = LAUNCHED
    master_port: int = 0
    master_address: str = ""
    """Empty: the first of the machines."""

    @property
    def size(self) -> int:
        return self.ranks * max(1, len(self.hosts))

    @property
    def first_rank(self) -> int:
        return self.ranks * self.host_index


def environments(
    wish: Wish,
    sockets: Sequence[str],
    run: str,
    *,
    inherited: Mapping[str, str],
    cores: int,
    is_labelled: bool,
) -> list[dict[str, str]]:
    """The environment of each process of this machine.

    ``sockets``: those of the host daemons, among which the ranks are divided in order, about as many to
    each. ``run``: what marks the processes of this start.
    """
    usual = dict(inherited)
    usual.setdefault("OMP_NUM_THREADS", str(max(1, cores // wish.ranks)))
    usual.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if is_labelled:
        usual.setdefault("PYTHONUNBUFFERED", "1")  # a pipe would else have lines come by the thousand
    usual.pop(TAKEN_VARIABLE, None)
    if wish.backends:
        usual[TAKEN_VARIABLE] = ",".join(wish.backends)
    if wish.path:
        usual[PATH_VARIABLE] = wish.path
    usual |= {
        "WORLD_SIZE": str(wish.size),
        "LOCAL_WORLD_SIZE": str(wish.ranks),
        "GROUP_RANK": str(wish.host_index),
        "MASTER_ADDR": wish.master_address or (wish.hosts[0] if wish.hosts else "127.0.0.1"),
        "MASTER_PORT": str(wish.master_port),
        JOB_VARIABLE: wish.job,
        SIZE_VARIABLE: str(wish.size),
        RUN_VARIABLE: run,
    }
    usual.pop(KEY_VARIABLE, None)
    if wish.key:
        usual[KEY_VARIABLE] = wish.key
    return [
        usual
        | {
            "RANK": str(wish.first_rank + local),
            "LOCAL_RANK": str(local),
            RANK_VARIABLE: str(wish.first_rank + local),
            SOCKET_VARIABLE: sockets[local * len(sockets) // wish.ranks],
        }
        for local in range(wish.ranks)
    ]


def find_command(
    words: Sequence[str], environment: Mapping[str, str], here: Path, own_python: str
) -> tuple[str, ...]:
    """The command with its program as a path. Raises ``CommandNotFound``, and names what may be meant.

    ``python`` is ``own_python``, which has inaproto, where no environment is active that says otherwise.
    """
    program = words[0]
    found = shutil.which(program, path=environment.get("PATH"))
    if program in ("python", "python3") and not any(environment.get(name) for name in _ACTIVE):
        found = own_python
    if found is None:
        file = here / program
        if program.endswith(".py") and file.is_file():
            raise CommandNotFound(
                f"{program} is not executable; start it by its interpreter: "
                f"inaproto run ... -- python {program}",
                EXIT_NOT_EXECUTABLE,
            )
        if os.sep in program and file.exists():
            raise CommandNotFound(f"{program} is not executable", EXIT_NOT_EXECUTABLE)
        where = "" if os.sep in program else ", neither on PATH nor here"
        raise CommandNotFound(f"{program}: there is no such program{where}", EXIT_NOT_FOUND)
    script = _script(words)
    if script and not (here / script).exists():
        raise CommandNotFound(f"{script}: there is no such script in {here}", EXIT_NOT_FOUND)
    return (found, *words[1:])


def _script(words: Sequence[str]) -> str:
    """The file that a Python is to run, if the words name one plainly."""
    if _is_python(words[0]) and len(words) > 1:
        return words[1] if words[1].endswith(".py") else ""
    return ""


def parse_backends(text: str) -> tuple[str, ...]:
    """``gloo,nccl`` or ``none``. Raises ``ConfigError``."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names == ("none",):
        return ()
    wrong = [name for name in names if name not in BACKENDS]
    if wrong or not names:
        raise ConfigError(
            f"--backend: {text!r} is not allowed: name {', '.join(BACKENDS)}, with a comma between, or none"
        )
    return names


def parse_hosts(text: str, here: Path) -> tuple[str, ...]:
    """``a,b``, ``node[01-04,7]`` as Slurm writes it, or a file that has one in each line.

    Raises ``ConfigError``.
    """
    file = here / text
    if file.is_file():
        with file.open("rb") as stream:
            data = stream.read(HOSTS_FILE_BYTES_MAX)
        lines = data.decode("utf-8", "replace").splitlines()
        text = ",".join(line.partition("#")[0].split(maxsplit=1)[0] for line in lines if _says(line))
    hosts = expand_hosts(text)
    if not hosts:
        raise ConfigError("--hosts: names no machine; give a,b or a file with one in each line")
    wrong = [host for host in hosts if not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", host)]
    if wrong:
        raise ConfigError(
            f"--hosts: {wrong[0]!r:.80} is no name of a machine (and no file of that name is here)"
        )
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise ConfigError(f"--hosts: {twice[0]} is named twice; -n says how many ranks a machine has")
    return hosts


def _says(line: str) -> bool:
    return bool(line.partition("#")[0].strip())


def expand_hosts(text: str) -> tuple[str, ...]:
    """Without brackets: ``m,n[1-3]`` is m, n1, n2 and n3. Raises ``ConfigError``."""
    while (found := _BRACKETS.search(text)) is not None:
        before, inside, after = found.groups()
        names = ",".join(f"{before}{number}{after}" for number in _numbers(inside))
        text = text[: found.start()] + names + text[found.end() :]
    return tuple(text.replace(",", " ").split())


def _numbers(inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) - int(first) > 4096):
            raise ConfigError(f"--hosts: [{inside}] is no list of numbers such as [01-04,7]")
        numbers = range(int(first), int(last if dash else first) + 1)
        found += [str(number).zfill(len(first)) for number in numbers]
    return found


def own_index(hosts: Sequence[str], asked: int | None, environment: Mapping[str, str], name: str) -> int:
    """Which of ``hosts`` this machine is: as was asked, as Slurm says, or by its ``name``.

    Raises ``ConfigError``.
    """
    if asked is not None:
        if not 0 <= asked < len(hosts):
            raise ConfigError(f"--host-index: {asked} is none of 0 to {len(hosts) - 1}, which --hosts names")
        return asked
    short = name.partition(".")[0]
    by_name = [index for index, host in enumerate(hosts) if host == name or host.partition(".")[0] == short]
    if len(by_name) == 1:
        return by_name[0]
    node = environment.get("SLURM_NODEID", "")
    if node.isdigit() and int(node) < len(hosts) and environment.get("SLURM_NNODES", "") == str(len(hosts)):
        return int(node)
    raise ConfigError(
        f"--hosts: this machine is called {name}, which is none of {', '.join(hosts)}; say which it is "
        "by --host-index (0 for the first)"
    )


def shared_port(job: str) -> int:
    """MASTER_PORT of a job whose launchers cannot ask each other for a free one: the same on all machines."""
    digest = hashlib.sha256(job.encode()).digest()
    return _PORTS[int.from_bytes(digest[:4], "big") % len(_PORTS)]


def may_lack_inaproto(wish: Wish, own_python: str) -> str:
    """What is said where no all-reduce went by inaproto, and another Python ran the script; or nothing."""
    program = wish.command[0]
    if not wish.backends or program == own_python or not _is_python(program):
        return ""
    return f"torch's all-reduces are redirected where inaproto is installed beside it; is it, for {program}?"


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python(3(\.[0-9]+)?)?", os.path.basename(program)) is not None


def redirected(wish: Wish) -> str:
    """What is said at the start of scripts that use torch; empty: nothing is redirected."""
    if not wish.backends:
        return ""
    names = " and ".join(wish.backends)
    return f"all-reduces of torch's {names} go by inaproto; --backend none leaves them"
