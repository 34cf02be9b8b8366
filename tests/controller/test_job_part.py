"""``inaproto job env``: which ranks of a placed job a host has, and what their processes need."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from inaproto.client.environment import discover
from inaproto.errors import ConfigError
from inaproto_controller.service.job_client import JobClient
from inaproto_controller.service.job_part import part_of, ranks_by_host, shell
from inaproto_controller.service.job_run import Asked, run_job
from inaproto_controller.service.submitting import Submission
from tests.daemon.test_controller_daemon import SUBMISSION, running

PLACED: dict[str, Any] = {
    "name": "train1",
    "state": "placed",
    "why": "",
    "hosts": ["h2", "h0", "h3"],
    "ranks_per_host": 4,
}


def test_ranks_are_numbered_by_host_in_the_order_of_the_job() -> None:
    assert part_of(PLACED, "h0") == {
        "job": "train1",
        "host": "h0",
        "hosts": ["h2", "h0", "h3"],
        "host_index": 1,
        "first_rank": 4,
        "ranks": 4,
        "size": 12,
        "elastic": False,
    }
    words = shell(part_of(PLACED, "h0"))
    assert words.startswith("# ranks 4 to 7 of 12 of job train1 run on h0\n")
    assert "inaproto run --job train1 --hosts h2,h0,h3 --host-index 1 -n 4 -- python train.py" in words
    assert "INAPROTO_RANK" not in words
    assert "-n 4 --elastic -- python train.py" in shell(part_of({**PLACED, "elastic": True}, "h0"))
    assert "--dir" not in words


@pytest.mark.parametrize(
    ("each", "words"),
    [
        (4, "h2 (ranks 0 to 3), h0 (ranks 4 to 7), h3 (ranks 8 to 11)"),
        (1, "h2 (rank 0), h0 (rank 1), h3 (rank 2)"),
    ],
)
def test_job_show_lists_ranks_by_host(each: int, words: str) -> None:
    assert ranks_by_host({**PLACED, "ranks_per_host": each}) == words
    assert ranks_by_host({**PLACED, "hosts": []}) == ""


def test_a_shell_reads_it_and_connect_needs_no_more() -> None:
    words = shell(part_of({**PLACED, "ranks_per_host": 1}, "h3"))
    said = subprocess.run(
        ["sh", "-c", 'eval "$1"; env', "sh", words], capture_output=True, text=True, check=True, env={}
    ).stdout
    found = discover(dict(line.split("=", 1) for line in said.splitlines()))
    assert (found.job, found.rank, found.size) == ("train1", 2, 3)


def test_what_is_printed_finds_the_daemon_in_the_directory_that_was_named() -> None:
    words = shell(part_of({**PLACED, "ranks_per_host": 1}, "h3"), Path("/run/my ina"))
    assert (
        "  inaproto run --dir '/run/my ina' --host h3 --job train1 --hosts h2,h0,h3 --host-index 2" in words
    )
    said = subprocess.run(
        ["sh", "-c", 'eval "$1"; env', "sh", words], capture_output=True, text=True, check=True, env={}
    ).stdout
    found = discover(dict(line.split("=", 1) for line in said.splitlines()))
    assert found.socket == "/run/my ina/h3.sock"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "job train1 has no ranks on h1: it is placed on h2, h0, h3"),
        (
            {"hosts": [], "state": "queued", "why": "1 of 2 are free"},
            "it is queued: 1 of 2 are free; inaproto job w",
        ),
        ({"state": "ended"}, r"job train1 is over \(ended\); submit it again"),
    ],
)
def test_a_job_without_ranks_there_says_where_it_is(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        part_of(PLACED | fields, "h1")


async def test_the_command_asks_the_controller(runtime_dir: Path) -> None:
    async with running(runtime_dir) as daemon:
        daemon.agent("host", "h0")
        daemon.agent("host", "h1")
        daemon.agent("switch", "leaf")
        await daemon.ask(daemon.client.submit, "train", 2, submission=SUBMISSION)
        await daemon.until("train", "placed")
        said = await daemon.command("env", "train", "--host", "h1")
        assert (said.exit_code, "export INAPROTO_RANK=1" in said.output.splitlines()) == (0, True), (
            said.output
        )
        strange = await daemon.command("env", "train", "--host", "h7")
        assert (strange.exit_code, "it is placed on h0, h1" in strange.output) == (2, True), strange.output


async def test_what_is_to_be_pasted_asks_the_same_controller(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(runtime_dir) as daemon:
        await daemon.ask(daemon.client.submit, "train", 2, submission=SUBMISSION)
        where = f"--dir {daemon.settings.dir}"
        early = await daemon.command("env", "train", "--host", "h1")
        assert early.output.endswith(f"; inaproto job watch {where} train\n")
        for host in ("h0", "h1"):
            daemon.agent("host", host)
        await daemon.until("train", "placed")
        placed = await daemon.command("env", "train", "--host", "h1")
        assert f"#   inaproto run {where} --host h1 --job train " in placed.output
        elsewhere = await daemon.command("env", "train", "--host", "h1", "--host-dir", "/run/ina")
        assert "#   inaproto run --dir /run/ina --host h1 --job train " in elsewhere.output
        monkeypatch.setattr(JobClient, "move", lambda *given, **named: {"stands": False})
        late = await daemon.command("move", "train", "--root", "leaf")
        assert f"inaproto job trees {where} " in late.output
        nameless = await daemon.command("submit", "--hosts", "1")
        assert f"inaproto job submit {where} NAME" in nameless.output


def test_a_job_that_may_not_be_over_is_cancelled_where_it_was_submitted(
    runtime_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller has gone since it was placed, and this process cannot start anything."""
    client = JobClient([str(runtime_dir / "none.sock")])
    submitted = {"job": {"name": "train", "number": 1, "state": "placed", "why": ""}, "token": "t"}

    def cannot() -> None:
        raise ConfigError("needs Linux 5.3 or later")

    monkeypatch.setattr("inaproto.launch.processes.require_pidfd", cannot)
    monkeypatch.setattr(JobClient, "submit", lambda *given, **named: submitted)
    submission = Submission(client, "train", 2, cancelling="inaproto job cancel --dir /x train")
    with pytest.raises(ConfigError):
        run_job(submission, submission.ask(), Asked(("true",)))
    said = "job train may be left at the controller: inaproto job cancel --dir /x train\n"
    assert capsys.readouterr().err.endswith(said)
