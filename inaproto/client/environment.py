"""Which job, rank and size a process has by the environment that its launcher made.

``connect()`` without arguments asks here. Read are variables of our own (``inaproto run`` sets them, and
whoever starts processes by hand may), then those of torchrun, Open MPI, MPICH (PMI) and Slurm. Nothing here
opens or waits for anything: each answer is a function of the variables alone.

Launchers start each other: Slurm starts ``mpirun`` or torchrun, and each of these may start ``inaproto run``.
The innermost one knows the rank, so the order in which they are asked is that of :data:`LAUNCHERS`, and what
Slurm says is of no interest to whom another launcher has spoken. Two that nobody nests so and that say
different things are refused: which of them is right only the user knows.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from inaproto.client.arguments import check_arguments
from inaproto.client.channel import JobRank
from inaproto.client.joining import SOCKET_VARIABLE
from inaproto.client.variables import misspelt, slips
from inaproto.client.wishes import JobWishes
from inaproto.errors import LocalMisuse

JOB_VARIABLE: Final = "INAPROTO_JOB"
RANK_VARIABLE: Final = "INAPROTO_RANK"
SIZE_VARIABLE: Final = "INAPROTO_SIZE"
KEY_VARIABLE: Final = "INAPROTO_KEY"
"""The environment of a process is read by its user and root alone; its command line by everybody."""
_DERIVED_CHARACTERS_MAX: Final = 96
"""Length of a job's name that is made of a launcher's; more rings than one make it longer."""
_NEEDED: Final = ("job", "rank", "size", "key")

log = logging.getLogger("inaproto.client")


def _of_torchrun(environment: Mapping[str, str]) -> tuple[str, str]:
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":  # which is what torchrun says without --rdzv-id
        return f"torchrun-{run}", "TORCHELASTIC_RUN_ID"
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if address and port:
        return f"torch-{address}-{port}", "MASTER_ADDR and MASTER_PORT"
    return "", "TORCHELASTIC_RUN_ID or MASTER_ADDR and MASTER_PORT"


def _of_open_mpi(environment: Mapping[str, str]) -> tuple[str, str]:
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):
        if environment.get(variable):
            return f"mpi-{environment[variable].replace('@', '.')}", variable
    return "", "PMIX_NAMESPACE"


def _of_mpich(environment: Mapping[str, str]) -> tuple[str, str]:
    for variable in ("PMI_JOBID", "PMIX_NAMESPACE"):
        if environment.get(variable):
            return f"mpi-{environment[variable]}", variable
    return _of_slurm(environment) if environment.get("SLURM_STEP_ID") else ("", "PMI_JOBID")


def _of_slurm(environment: Mapping[str, str]) -> tuple[str, str]:
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if job and step:
        return f"slurm-{job}.{step}", "SLURM_JOB_ID and SLURM_STEP_ID"
    return "", "SLURM_JOB_ID and SLURM_STEP_ID"


@dataclass(frozen=True, slots=True)
class Launcher:
    name: str
    rank: str
    """Variable."""
    size: str
    """Variable."""
    job: Callable[[Mapping[str, str]], tuple[str, str]]
    """Name of the job ("" where the launcher gives none), and the variables that it is made of."""

    @property
    def variables(self) -> str:
        return f"{self.rank} and {self.size}"


OURS: Final = Launcher("inaproto", RANK_VARIABLE, SIZE_VARIABLE, lambda environment: ("", JOB_VARIABLE))
TORCHRUN: Final = Launcher("torchrun", "RANK", "WORLD_SIZE", _of_torchrun)
OPEN_MPI: Final = Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _of_open_mpi)
MPICH: Final = Launcher("MPICH (PMI)", "PMI_RANK", "PMI_SIZE", _of_mpich)
SLURM: Final = Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", _of_slurm)
LAUNCHERS: Final = (OURS, TORCHRUN, OPEN_MPI, MPICH, SLURM)


@dataclass(frozen=True, slots=True)
class Found:
    """What the environment says; None: nothing."""

    job: str | None = None
    rank: int | None = None
    size: int | None = None
    key: str | None = field(default=None, repr=False)
    socket: str | None = None
    """As :data:`SOCKET_VARIABLE` has it: of one host daemon, or of several with colons between them."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """From which variables each of them is."""


def discover(environment: Mapping[str, str], wanted: Collection[str] = _NEEDED) -> Found:
    """What a launcher has told this process. A variable of ``environment`` that is empty is as good as none.

    ``wanted`` is what is to be known, of "job", "rank", "size" and "key": of the rest nothing is refused.
    Raises ``LocalMisuse``, which names the variables: one of a pair is missing, one is no number, or two
    launchers disagree.
    """
    found: dict[str, tuple[int | str | None, str]] = {}
    launcher: Launcher | None = None
    if "rank" in wanted or "size" in wanted:
        launcher = _launcher(environment, wanted)
        if launcher is not None:
            rank, size = _numbers(launcher, environment)
            found |= {"rank": (rank, launcher.rank), "size": (size, launcher.size)}
    found["job"] = (environment.get(JOB_VARIABLE), JOB_VARIABLE)
    if not found["job"][0] and "job" in wanted:
        found["job"] = _derived_job(environment, launcher)
    found["key"] = (environment.get(KEY_VARIABLE), KEY_VARIABLE)
    found["socket"] = (environment.get(SOCKET_VARIABLE), SOCKET_VARIABLE)
    said: dict[str, Any] = {name: value for name, (value, _) in found.items() if value not in (None, "")}
    return Found(**said, sources={name: found[name][1] for name in said})


def _has(environment: Mapping[str, str], launcher: Launcher) -> tuple[bool, bool]:
    return bool(environment.get(launcher.rank)), bool(environment.get(launcher.size))


def _launcher(environment: Mapping[str, str], wanted: Collection[str]) -> Launcher | None:
    """The innermost one that says rank and size (or at least what is wanted of them)."""
    given = {launcher: _has(environment, launcher) for launcher in LAUNCHERS}
    if given[SLURM][0] and not environment.get("SLURM_STEP_ID"):
        # The script of a batch job has SLURM_PROCID 0 and SLURM_NTASKS, and is no rank of anything.
        given[SLURM] = (False, False)
    complete = [launcher for launcher, (rank, size) in given.items() if rank and size]
    _require_pair(OURS, environment, given[OURS], wanted)
    if complete:
        _require_agreement(complete, environment)
        return complete[0]
    for launcher, (rank, size) in given.items():
        if rank or size:
            _require_pair(launcher, environment, (rank, size), wanted)
            return launcher
    return None


def _require_pair(
    launcher: Launcher, environment: Mapping[str, str], given: tuple[bool, bool], wanted: Collection[str]
) -> None:
    rank, size = given
    if rank == size or ("size" if rank else "rank") not in wanted:
        return
    there, missing = (launcher.rank, launcher.size) if rank else (launcher.size, launcher.rank)
    argument = "size" if rank else "rank"
    raise LocalMisuse(
        f"connect: {there} is set ({environment[there]!r:.100}), and {missing} is not; set both, or give "
        f"{argument}="
    )


def _require_agreement(complete: list[Launcher], environment: Mapping[str, str]) -> None:
    """Launchers that nobody starts within each other say the same."""
    first = complete[0]
    pairs = [(OPEN_MPI, MPICH)]
    if first is OURS:
        # `inaproto run` says its ranks as torchrun does, too, and may itself be a process of MPI.
        pairs = [(OURS, TORCHRUN)] if TORCHRUN in complete else [(OURS, OPEN_MPI), (OURS, MPICH)]
    elif first is TORCHRUN:
        by_hand = not environment.get("TORCHELASTIC_RUN_ID")
        pairs = [(TORCHRUN, OPEN_MPI), (TORCHRUN, MPICH)] if by_hand else []
    for one, other in pairs:
        if one not in complete or other not in complete:
            continue
        if _numbers(one, environment) != _numbers(other, environment):
            raise LocalMisuse(
                f"connect: this process is {_said(one, environment)}, but {_said(other, environment)}; unset "
                "those that are not meant, or give rank= and size="
            )


def _said(launcher: Launcher, environment: Mapping[str, str]) -> str:
    rank, size = (environment[variable] for variable in (launcher.rank, launcher.size))
    return f"rank {rank} of {size} by {launcher.variables} ({launcher.name})"


def _numbers(launcher: Launcher, environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    rank, size = (_number(environment, variable) for variable in (launcher.rank, launcher.size))
    if size == 0:
        raise LocalMisuse(f"connect: {launcher.size} is 0; a job has at least one rank")
    if rank is not None and size is not None and rank >= size:
        raise LocalMisuse(
            f"connect: {launcher.rank} is {rank} and {launcher.size} is {size}; ranks of a job of {size} are "
            f"0 to {size - 1}"
        )
    return rank, size


def _number(environment: Mapping[str, str], variable: str) -> int | None:
    text = environment.get(variable, "")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise LocalMisuse(f"connect: {variable} is {text!r:.100}; it must be a whole number, from 0 on")
    return int(text)


def _derived_job(environment: Mapping[str, str], launcher: Launcher | None) -> tuple[str, str]:
    """The name that all processes of one start have alike, and no others, and what it is made of."""
    if launcher is OURS or launcher is None:
        # Our rank and size, by hand, without our job: a launcher around them may know one.
        launcher = next((other for other in LAUNCHERS[1:] if other.job(environment)[0]), None)
        if launcher is None:
            return "", ""
    name, variables = launcher.job(environment)
    return (_job_name(name) if name else ""), variables


def _job_name(text: str) -> str:
    """The text as a name that switches take for a job; another text has another name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", text)
    if plain == text and len(plain) <= _DERIVED_CHARACTERS_MAX:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{plain[: _DERIVED_CHARACTERS_MAX - 17]}-{digest}"


def who_joins(
    job: str | None,
    rank: int | None,
    size: int | None,
    key: str | None,
    timeout: object,
    wishes: JobWishes,
    environment: Mapping[str, str],
) -> JobRank:
    """Who this process is: by the arguments of ``connect``, and where these are None by the environment.

    Raises ``LocalMisuse``.
    """
    warn_of_misspelt(environment)
    given = {"job": job, "rank": rank, "size": size, "key": key}
    wanted = [name for name, value in given.items() if value is None]
    found = discover(environment, wanted) if wanted else Found()
    merged = {name: getattr(found, name) if value is None else value for name, value in given.items()}
    missing = [name for name in ("job", "rank", "size") if merged[name] is None]
    if missing:
        raise LocalMisuse(_what_is_missing(missing, found, environment))
    who = check_arguments(merged["job"], merged["rank"], merged["size"], merged["key"] or "", timeout, wishes)
    if job is None or rank is None:
        _tell(who, found)
    return who


def _what_is_missing(missing: list[str], found: Found, environment: Mapping[str, str]) -> str:
    arguments = " and ".join(f"{name}=" for name in missing)
    meant = "".join(
        f" {variable} is set, which is not known: did you mean {close}?"
        for variable, close in misspelt(environment)
        if close in (JOB_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE)
    )
    if missing == ["job"]:
        by = f" by {found.sources['rank']}" if "rank" in found.sources else ""
        return (
            f"connect: the rank is known{by}, but the job has no name that all its ranks share; give "
            f"{arguments} or set {JOB_VARIABLE}, the same for all of them and another for each start.{meant}"
        )
    batch = ""
    if environment.get("SLURM_JOB_ID") and not environment.get("SLURM_STEP_ID"):
        batch = " This is the script of a Slurm job, not a task of one of its steps: start tasks by srun."
    elif found.sources.get("job") == JOB_VARIABLE:
        batch = f" {JOB_VARIABLE} is set, {RANK_VARIABLE} and {SIZE_VARIABLE} are not."
    asked = ", ".join(f"{launcher.variables} ({launcher.name})" for launcher in LAUNCHERS)
    return (
        f"connect: no {' and no '.join(missing)}: give {arguments}, or start the script by a launcher, as in "
        f"`inaproto run -n 2 -- python train.py`. No launcher has set its variables: {asked}.{batch}{meant}"
    )


def _tell(who: JobRank, found: Found) -> None:
    """In the log, for whoever asks why a process took itself for this rank."""
    by = ", ".join(f"{name} by {variables}" for name, variables in found.sources.items())
    open_to = (
        ""
        if who.key
        else f"; it has no key ({KEY_VARIABLE}): any process that reaches a host daemon may join it"
    )
    log.info("%s of %d (%s)%s", who, who.size, by, open_to)


_warned: set[str] = set()


def warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Name, once in this process, variables that look like ones of inaproto and are none."""
    for slip in slips(environment):
        if slip not in _warned:
            _warned.add(slip)
            log.warning("%s", slip)
