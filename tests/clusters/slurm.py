"""Slurm on this machine: munged, slurmctld and a slurmd for each node, with files, keys and ports of its own.

No service of the system is used or needed. What was started here is ended by its process id.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from inaproto.launch.processes import WITH_PARENT, script_of
from inaproto_hil.rigs.models_cluster import free_ports

PROGRAMS: Final = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "squeue",
    "scancel",
    "scontrol",
    "logger",
)
DEADLINE_S: Final = 600.0
"""Longer than a busy machine needs, so only a hang meets it."""
OVER: Final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
"""States of a job."""
POLL_S: Final = 0.1
END_S: Final = 20.0

_CONFIGURATION: Final = """
ClusterName=inaproto
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=h[0-{last}] NodeHostname={machine} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=4 RealMemory=100
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
Include {include}
"""


class Slurm:
    """A cluster whose nodes are called h0, h1, ...; ``directory`` has all that is its own."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment

    def ask(self, *words: str, cwd: Path | None = None) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            words,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=cwd,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}{self.logs()}"
        return done.stdout

    def submit(self, tree: Path, script: Path, *options: str) -> Submitted:
        """``sbatch`` from the directory ``tree``."""
        output = self.directory / f"out-{secrets.token_hex(4)}"
        words = ["sbatch", "--parsable", f"--output={output}", *options, str(script)]
        return Submitted(self, int(self.ask(*words, cwd=tree)), output)

    def queue(self) -> list[str]:
        return self.ask("squeue", "--noheader", "--format=%i %T").splitlines()

    def node_state(self, name: str) -> str:
        return self.ask("sinfo", "--noheader", f"--nodes={name}", "--format=%T %E").strip()

    def until(self, happened: Callable[[], object], what: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < until, f"{what}{self.logs()}"
            time.sleep(POLL_S)

    def logs(self) -> str:
        found = ""
        for path in sorted(self.directory.glob("*.log")):
            last = path.read_text(errors="replace").splitlines()[-15:]
            found += f"\n-- {path.name}\n" + "\n".join(last)
        return found


class Submitted:
    def __init__(self, slurm: Slurm, number: int, output: Path) -> None:
        self.slurm = slurm
        self.number = number
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def _field(self, name: str) -> str:
        said = self.slurm.ask("scontrol", "--oneliner", "show", "job", str(self.number))
        return next(word.partition("=")[2] for word in said.split() if word.startswith(f"{name}="))

    @property
    def state(self) -> str:
        return self._field("JobState")

    def until(self, happened: Callable[[], bool]) -> None:
        """What happens before it is over."""

        def has_happened() -> bool:
            assert self.state not in OVER, self.output
            return happened()

        self.slurm.until(has_happened, self.output)

    def wait(self) -> str:
        """Until it is over, its epilog included; its last state."""
        self.slurm.until(lambda: self.state in OVER, self.output)
        self.slurm.until(lambda: not self.slurm.queue(), f"job {self.number} leaves the queue")
        return self.state

    def until_gone(self) -> None:
        """Until none of its processes is left here. Slurm may call a job over when its shell has ended, and
        what that had started is still ending: `inaproto run` last, behind its ranks and daemons."""
        self.slurm.until(lambda: not self._processes(), f"processes of job {self.number} end")

    def _processes(self) -> list[int]:
        """Those that it has on this machine, on any of its nodes."""
        return with_variables(SLURM_JOB_ID=str(self.number), SLURM_CONF=self.slurm.environment["SLURM_CONF"])


def with_variables(**variables: str) -> list[int]:
    """Processes that have these in their environment."""
    wanted = {f"{name}={text}".encode() for name, text in variables.items()}
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


@contextmanager
def slurm(directory: Path, nodes: int, include: Path, variables: dict[str, str]) -> Iterator[Slurm]:
    """All nodes are idle. ``include``: more of its configuration; ``variables``: of who submits jobs."""
    conf = directory / "slurm.conf"
    for name in ("munge", "state", "spool"):
        (directory / name).mkdir(mode=0o700)
    key = directory / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = free_ports(nodes + 1)
    conf.write_text(
        _CONFIGURATION.format(
            machine=socket.gethostname().partition(".")[0],
            control_port=ports[0],
            ports=",".join(map(str, ports[1:])),
            user=getpass.getuser(),
            directory=directory,
            last=nodes - 1,
            include=include,
        )
    )
    munge = directory / "munge"
    found = Slurm(directory, {**os.environ, **variables, "SLURM_CONF": str(conf)})
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> None:
        with (directory / f"{name}.out.log").open("wb") as log:
            program = shutil.which(words[0]) or words[0]
            argv = [*script_of(WITH_PARENT, str(os.getpid())), program, *words[1:]]
            started.append(
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
            )

    try:
        start(
            "munged",
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket"),
            *(f"--{what}-file={munge}/{what}" for what in ("log", "pid", "seed")),
        )
        found.until((munge / "socket").exists, "munged listens")
        start("slurmctld", "slurmctld", "-D", "-c", "-f", str(conf))
        for number in range(nodes):
            start(f"slurmd{number}", "slurmd", "-D", "-N", f"h{number}", "-f", str(conf))
        found.until(lambda: _are_idle(found, nodes), "all nodes are idle")
        yield found
    finally:
        _end(found, started)


def _are_idle(cluster: Slurm, nodes: int) -> bool:
    words = ["sinfo", "--noheader", "--Node", "--format=%T"]
    done = subprocess.run(words, env=cluster.environment, capture_output=True, text=True, check=False)
    return done.stdout.split() == ["idle"] * nodes


def _end(cluster: Slurm, started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Jobs first, which end with their steps' own processes; then the daemons, by their ids."""
    for pid in with_variables(SLURM_CONF=cluster.environment["SLURM_CONF"]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in reversed(started):
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S)
