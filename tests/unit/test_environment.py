"""Job, rank, size and key of a process by its launcher's variables (docs/launching.md)."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

import inaproto
from inaproto.client import environment as client_environment
from inaproto.client.environment import Found, discover, who_joins
from inaproto.client.variables import _SETTINGS, KNOWN, misspelt, slips
from inaproto.client.wishes import JobWishes
from inaproto.core.rendezvous.rules import JOB_NAME
from inaproto.daemon.settings.config import HostSettings, ServerSettings, SwitchSettings
from inaproto.errors import LocalMisuse
from inaproto_controller.service.settings import ControllerSettings

OURS = {"INAPROTO_JOB": "train", "INAPROTO_RANK": "1", "INAPROTO_SIZE": "4", "INAPROTO_KEY": "secret"}
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "bert",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_NAMESPACE": "prterun-node0-4711@1",
    "PMIX_RANK": "2",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_MCA_ess_base_jobid": "1234567",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "0",
}
BATCH_SCRIPT = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}


def says(environment: dict[str, str]) -> tuple[object, ...]:
    found = discover(environment)
    return found.job, found.rank, found.size, found.key


def refusal(environment: dict[str, str], **given: Any) -> str:
    arguments = {"job": None, "rank": None, "size": None, "key": None} | given
    with pytest.raises(LocalMisuse) as caught:
        who_joins(**arguments, timeout=1, wishes=JobWishes(), environment=environment)
    return str(caught.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, None, None, None)),
        (OURS, ("train", 1, 4, "secret")),
        (TORCHRUN, ("torchrun-bert", 5, 8, None)),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, ("torch-node0-29500", 5, 8, None)),
        (OPEN_MPI_5, ("mpi-prterun-node0-4711.1", 2, 3, None)),
        (OPEN_MPI_4, ("mpi-1234567", 2, 3, None)),
        (MPICH, (None, 1, 2, None)),
        (MPICH | {"PMI_JOBID": "77.0"}, ("mpi-77.0", 1, 2, None)),
        (SLURM, ("slurm-77.3", 6, 8, None)),
        (BATCH_SCRIPT, (None, None, None, None)),
    ],
)
def test_each_launcher_says_who_a_process_is(
    environment: dict[str, str], expected: tuple[object, ...]
) -> None:
    assert says(environment) == expected


def test_each_answer_says_from_which_variables_it_is() -> None:
    found = discover(SLURM | {"INAPROTO_KEY": "k", "INAPROTO_HOST_SOCKET": "/run/h0.sock"})
    assert found == Found("slurm-77.3", 6, 8, "k", "/run/h0.sock", found.sources)
    assert found.sources == {
        "job": "SLURM_JOB_ID and SLURM_STEP_ID",
        "rank": "SLURM_PROCID",
        "size": "SLURM_NTASKS",
        "key": "INAPROTO_KEY",
        "socket": "INAPROTO_HOST_SOCKET",
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        # srun starts torchrun, mpirun or mpiexec on each node: they number the processes, not Slurm.
        (SLURM | TORCHRUN, ("torchrun-bert", 5, 8)),
        (SLURM | OPEN_MPI_5, ("mpi-prterun-node0-4711.1", 2, 3)),
        (SLURM | MPICH, ("slurm-77.3", 1, 2)),
        # mpirun starts torchrun, or inaproto run, once on each machine.
        (OPEN_MPI_5 | TORCHRUN, ("torchrun-bert", 5, 8)),
        (OPEN_MPI_5 | OURS | {"RANK": "1", "WORLD_SIZE": "4"}, ("train", 1, 4)),
        (SLURM | OURS, ("train", 1, 4)),
        # What nobody completed is of no interest beside what somebody did.
        (OPEN_MPI_5 | {"RANK": "7"}, ("mpi-prterun-node0-4711.1", 2, 3)),
        # The name is ours, the numbers are the launcher's.
        (TORCHRUN | {"INAPROTO_JOB": "mine"}, ("mine", 5, 8)),
        # The numbers are ours, the name is the launcher's.
        (SLURM | {"INAPROTO_RANK": "0", "INAPROTO_SIZE": "2"}, ("slurm-77.3", 0, 2)),
    ],
)
def test_the_innermost_launcher_knows_the_rank(
    environment: dict[str, str], expected: tuple[object, ...]
) -> None:
    assert says(environment)[:3] == expected


def test_a_launcher_within_another_numbers_the_processes() -> None:
    """Slurm starts one torchrun on each of two nodes, and each of these four ranks."""
    assert says(SLURM | TORCHRUN)[1:3] == (5, 8)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (OURS | {"RANK": "0", "WORLD_SIZE": "4"}, "RANK and WORLD_SIZE"),
        (OURS | OPEN_MPI_5, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
        (OURS | MPICH, "PMI_RANK and PMI_SIZE"),
        (OPEN_MPI_5 | {"RANK": "1", "WORLD_SIZE": "3"}, "RANK and WORLD_SIZE"),
        (OPEN_MPI_5 | MPICH, "PMI_RANK and PMI_SIZE"),
    ],
)
def test_launchers_that_disagree_are_both_named(environment: dict[str, str], named: str) -> None:
    words = refusal(environment)
    assert named in words
    assert "unset those that are not meant, or give rank= and size=" in words


def test_launchers_that_agree_may_both_speak() -> None:
    assert says(OURS | {"RANK": "1", "WORLD_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "4"})[1:3] == (1, 4)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"INAPROTO_RANK": "1"},
            "INAPROTO_RANK is set ('1'), and INAPROTO_SIZE is not; set both, or give size=",
        ),
        (
            {"INAPROTO_SIZE": "2"},
            "INAPROTO_SIZE is set ('2'), and INAPROTO_RANK is not; set both, or give rank=",
        ),
        (OPEN_MPI_5 | {"INAPROTO_RANK": "1"}, "INAPROTO_RANK is set ('1'), and INAPROTO_SIZE is not"),
        ({"RANK": "1"}, "RANK is set ('1'), and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "1"}, "WORLD_SIZE is set ('1'), and RANK is not"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK is set ('1'), and OMPI_COMM_WORLD_SIZE is not"),
        ({"PMI_SIZE": "1"}, "PMI_SIZE is set ('1'), and PMI_RANK is not"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'; it must be a whole number, from 0 on"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'; it must be a whole number"),
        ({"RANK": "٣", "WORLD_SIZE": "9"}, "it must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2; ranks of a job of 2 are 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0; a job has at least one rank"),
    ],
)
def test_half_of_a_pair_and_bad_numbers_are_refused_by_name(environment: dict[str, str], words: str) -> None:
    assert words in refusal(environment)


def who(environment: dict[str, str], **given: Any) -> tuple[str, int, int, str]:
    arguments = {"job": None, "rank": None, "size": None, "key": None} | given
    found = who_joins(**arguments, timeout=1, wishes=JobWishes(), environment=environment)
    return found.job, found.rank, found.size, found.key


def test_an_argument_wins_over_the_environment() -> None:
    assert who(OURS) == ("train", 1, 4, "secret")
    assert who(OURS, job="other", rank=0, size=2, key="k") == ("other", 0, 2, "k")
    assert who(OURS, key="") == ("train", 1, 4, "")
    assert who(TORCHRUN, job="mine") == ("mine", 5, 8, "")
    assert who({"INAPROTO_SIZE": "4"}, job="mine", rank=3) == ("mine", 3, 4, "")
    assert who({"WORLD_SIZE": "4", "RANK": "0"}, job="mine", rank=3) == ("mine", 3, 4, "")


def test_who_says_all_of_it_is_not_asked_for_more() -> None:
    """A broken environment is refused only where something of it is needed."""
    broken = OURS | OPEN_MPI_5 | {"RANK": "x"}
    assert who(broken, job="mine", rank=0, size=2) == ("mine", 0, 2, "secret")


def test_variables_that_are_empty_count_as_not_set() -> None:
    assert says(dict.fromkeys({**OURS, **TORCHRUN, **OPEN_MPI_5, **SLURM, **MPICH}, "")) == (None,) * 4


def test_outside_a_launcher_the_words_say_how_to_start_one() -> None:
    words = refusal({})
    assert words.startswith(
        "connect: no job and no rank and no size: give job= and rank= and size=, or start"
    )
    assert "`inaproto run -n 2 -- python train.py`" in words
    for variable in ("INAPROTO_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "SLURM_PROCID"):
        assert variable in words
    assert "INAPROTO_JOB is set, INAPROTO_RANK and INAPROTO_SIZE are not." in refusal({"INAPROTO_JOB": "a"})
    assert "no rank and no size: give rank= and size=," in refusal({}, job="train")


def test_the_script_of_a_batch_job_is_no_rank() -> None:
    assert "This is the script of a Slurm job, not a task of one of its steps" in refusal(BATCH_SCRIPT)


def test_a_launcher_that_names_no_job_is_said_so() -> None:
    """Two starts at once of the same script would else be one job, and sum each other's gradients."""
    words = refusal(MPICH)
    assert "the rank is known by PMI_RANK, but the job has no name" in words
    assert "give job= or set INAPROTO_JOB" in words


def test_names_of_jobs_are_plain_and_not_too_long() -> None:
    def name(run: str) -> str:
        found = discover(TORCHRUN | {"TORCHELASTIC_RUN_ID": run}).job
        assert found is not None
        return found

    ring, long, longer = name("a#0/2"), name("x" * 300), name("x" * 301)
    assert ring.startswith("torchrun-a-0-2-")
    assert len(long) == len(longer) == 96
    assert len({ring, long, longer, name("a~0/2")}) == 4
    assert all(who(TORCHRUN | {"TORCHELASTIC_RUN_ID": run}) for run in ("a#0/2", "ä" * 100, "\udce4"))
    assert all(map(JOB_NAME.fullmatch, (ring, long, longer, name("a~0/2"), name("ä" * 100), name("::1"))))


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN,
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "", "MASTER_ADDR": "fe80::1"},
        OPEN_MPI_5,
        OPEN_MPI_4,
        MPICH | {"PMI_JOBID": "77@0"},
        SLURM,
    ],
)
def test_a_switch_takes_the_names_that_launchers_give(environment: dict[str, str]) -> None:
    assert JOB_NAME.fullmatch(discover(environment).job or "")


def test_a_misspelt_variable_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_environment, "_warned", set())
    slips = OURS | {"INAPROTO_RNAK": "1", "INAPROTO_MTUU": "2048", "INAPROTO_OF_A_SCRIPT": "1"}
    with caplog.at_level(logging.WARNING, "inaproto.client"):
        who(slips)
        who(slips)
    assert [record.getMessage() for record in caplog.records] == [
        "environment variable INAPROTO_MTUU is not known, did you mean INAPROTO_MTU?",
        "environment variable INAPROTO_RNAK is not known, did you mean INAPROTO_RANK?",
    ]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"INAPROTO_JOB": "train", "INAPROTO_RNAK": "1", "INAPROTO_SIZE": ""},
            r"no rank and no size: .* INAPROTO_RNAK is set, which is not known: did you mean INAPROTO_RANK\?",
        ),
        (
            {"INAPROTO_RANK": "0", "INAPROTO_SIZE": "1", "INAPROTO_JOBB": "train"},
            r"has no name that all its ranks share.*INAPROTO_JOBB is set, .*did you mean INAPROTO_JOB\?",
        ),
    ],
)
def test_what_is_missing_may_be_misspelt(environment: dict[str, str], words: str) -> None:
    with pytest.raises(LocalMisuse, match=words):
        who(environment)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("INAPROTO_HOSTSOCKET", "INAPROTO_HOST_SOCKET"),
        ("INAPROTO_SOCKET", "INAPROTO_HOST_SOCKET"),
        ("INAPROTO_TORHC", "INAPROTO_TORCH"),
        ("INAPROTO_JOBAPI", "INAPROTO_JOB_API"),
    ],
)
def test_the_nearest_right_one_is_named(variable: str, meant: str) -> None:
    assert slips({variable: "1"}) == [f"environment variable {variable} is not known, did you mean {meant}?"]


def test_every_variable_that_is_read_is_known() -> None:
    """A right one must not be called a slip of the pen."""
    tree = Path(client_environment.__file__).parents[2]
    read = {
        name
        for room in ("inaproto", "controller", "adapters", "hil", "examples")
        for file in (tree / room).rglob("*.py")
        for name in re.findall(r"\"(INAPROTO_[A-Z_]+)\"", file.read_text())
    }
    assert {"INAPROTO_HOST_SOCKET", "INAPROTO_TORCH_WITHOUT"} <= read
    assert read <= KNOWN


def test_the_variables_of_daemons_are_known() -> None:
    models = (SwitchSettings, HostSettings, ServerSettings, ControllerSettings)
    fields = {name for model in models for name in model.model_fields}
    assert set(_SETTINGS.split()) == fields
    assert not list(misspelt({f"INAPROTO_{name.upper()}": "1" for name in fields}))


def test_the_log_says_why_a_process_is_this_rank(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "inaproto.client"):
        who(SLURM)
        who(OURS)
        who({}, job="mine", rank=0, size=1)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("rank 6 of job 'slurm-77.3' of 8 (rank by SLURM_PROCID, size by SLURM_NTASKS, ")
    assert "it has no key (INAPROTO_KEY): any process that reaches a host daemon may join it" in first
    assert "no key" not in second
    assert "secret" not in second


def test_connect_asks_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*OURS, *TORCHRUN, *OPEN_MPI_5, *MPICH, *SLURM} & set(os.environ):
        monkeypatch.delenv(name)
    nowhere = tmp_path / "none.sock"
    with pytest.raises(LocalMisuse, match="no job and no rank and no size"):
        inaproto.connect_blocking(socket=nowhere)
    for name, value in OURS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(inaproto.DaemonUnreachable, match="rank 1 of job 'train'"):
        inaproto.connect_blocking(socket=nowhere, timeout=0)
