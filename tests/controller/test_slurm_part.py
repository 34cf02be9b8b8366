"""``inaproto job submit --slurm`` and ``cancel --slurm``, by the variables that Slurm sets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inaproto.client.environment import discover
from inaproto.errors import ConfigError
from inaproto_controller.service.job_command import job as job_command
from inaproto_controller.service.slurm_part import Allocation, allocation_of, job_name, shell
from tests.daemon.test_controller_daemon import Daemon, running

NODES = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "h[0-1]", "SLURM_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("nodes", "tasks", "expected"),
    [
        ("h[0-2]", "4(x3)", Allocation(("h0", "h1", "h2"), 4)),
        ("gpu[08-10,12],fat1", "1(x5)", Allocation(("gpu08", "gpu09", "gpu10", "gpu12", "fat1"), 1)),
        ("h7", "8", Allocation(("h7",), 8)),
    ],
)
def test_nodes_and_tasks(nodes: str, tasks: str, expected: Allocation) -> None:
    assert allocation_of({"SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": tasks}) == expected


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "SLURM_JOB_NODELIST is not set"),
        ({"SLURM_JOB_NODELIST": "h0"}, "SLURM_TASKS_PER_NODE is not set"),
        ({"SLURM_JOB_NODELIST": "h[0-2]", "SLURM_TASKS_PER_NODE": "2(x2),1"}, "--ntasks-per-node"),
    ],
)
def test_what_is_no_allocation(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        allocation_of(variables)


def test_a_name_needs_the_number_of_the_job() -> None:
    assert job_name({"SLURM_JOB_ID": "4711"}) == "slurm-4711"
    with pytest.raises(ConfigError, match="SLURM_JOB_ID is not set"):
        job_name({})


def test_tasks_of_the_step_find_job_and_key() -> None:
    words = shell("slurm-12", "a token")
    said = subprocess.run(
        ["sh", "-c", 'eval "$1"; env', "sh", words], capture_output=True, text=True, check=True, env={}
    ).stdout
    variables = dict(line.split("=", 1) for line in said.splitlines())
    task = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}
    found = discover(variables | task)
    assert (found.job, found.key, found.rank, found.size) == ("slurm-12", "a token", 3, 4)


async def ask(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, *words: str, **variables: str) -> Result:
    for name in NODES:
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return await daemon.command(*words)


async def test_a_script_has_hosts_and_token_and_its_epilog_frees_them(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(runtime_dir) as daemon:
        for host in ("h0", "h1"):
            daemon.agent("host", host)
        found = await ask(daemon, monkeypatch, "submit", "--slurm", **NODES)
        assert found.exit_code == 0, found.output
        assert found.stdout.startswith("export INAPROTO_JOB=slurm-12\nexport INAPROTO_KEY=")
        assert "job slurm-12 is placed, hosts h0, h1, no tree" in found.stderr
        job = await daemon.ask(daemon.client.job, "slurm-12")
        assert (job["hosts"], job["hosts_named"], job["ranks_per_host"]) == (["h0", "h1"], ["h0", "h1"], 2)
        over = await ask(daemon, monkeypatch, "cancel", "--slurm", SLURM_JOB_ID="12")
        assert (over.exit_code, over.output) == (0, "job slurm-12 is cancelled: by request\n")
        none = await ask(daemon, monkeypatch, "cancel", "--slurm", SLURM_JOB_ID="13")
        assert (none.exit_code, none.output) == (0, "")


async def test_who_does_not_get_its_hosts_in_time_is_told_why_and_is_gone(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(runtime_dir) as daemon:
        daemon.agent("host", "h0")
        late = await ask(daemon, monkeypatch, "submit", "--slurm", "--wait", "0.1", **NODES)
        assert (late.exit_code, late.stdout) == (1, "")
        assert "has no hosts after 0.1 s: it is queued: waits for hosts that it names: h1" in late.stderr
        assert await daemon.ask(daemon.client.jobs, live=True) == []


def test_a_controller_that_is_not_there_is_waited_for_aloud(runtime_dir: Path) -> None:
    words = ["submit", "x", "--on", "h0", "--wait", "0.1", "--dir", str(runtime_dir)]
    late = CliRunner().invoke(job_command, words)
    assert late.exit_code == 1
    first = late.stderr.splitlines()[0]
    assert first.startswith(f"inaproto job: {runtime_dir}/controller.sock: there is no such socket; ")
    assert first.endswith("; waiting for it")


async def test_a_job_on_hosts_by_hand(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(runtime_dir) as daemon:
        for host in ("h0", "h1"):
            daemon.agent("host", host)
        assert (await daemon.command("submit", "mine", "--on", "h1,h0")).exit_code == 0
        assert (await daemon.until("mine", "placed"))["hosts"] == ["h1", "h0"]
        for words, said in (
            (("submit", "other", "--on", "h7"), "job 'other': the cluster file has no host h7"),
            (("submit", "other", "--on", "h0,h0"), "on: names 1 hosts in 2 places"),
            (("submit", "other", "--on", "h0", "--hosts", "1"), "say how many hosts, or which"),
            (("submit", "other"), "say how many hosts, or which"),
            (("submit",), "no name"),
            (("cancel",), "say which job"),
        ):
            refused = await ask(daemon, monkeypatch, *words)
            assert refused.exit_code in (1, 2)
            assert said in refused.output


def test_the_api_takes_a_controller_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no ``on``, and refuses fields that it does not know."""
    from inaproto_controller.service.job_client import JobClient

    asked: list[Any] = []

    def ask_nobody(self: JobClient, method: str, path: str, body: Any) -> dict[str, Any]:
        asked.append(body)
        return {}

    monkeypatch.setattr(JobClient, "ask", ask_nobody)
    JobClient(["x"]).submit("a", 1, submission="s")
    assert "on" not in asked[0]
