"""``inaproto bench peers`` in small: real daemons on shaped links, and a peer where it can be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from inaproto_hil.bench.peers.command import peers_bench
from tests.namespaces import require_namespaces
from tests.peer_tools import tools_with


def bench(tmp_path: Path, *words: str, code: int = 0) -> dict[str, Any]:
    file = tmp_path / "report.json"
    done = CliRunner().invoke(peers_bench, [*words, "--turn", "0", "--json", str(file)])
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["wrong"] == 0
    return found


def test_daemons_sum_on_shaped_links(tmp_path: Path) -> None:
    require_namespaces()
    words = ["--hosts", "2", "--link", "200M", "--sizes", "64K", "--only", "inaproto", "--rounds", "2"]
    found = bench(tmp_path, *words)
    [row] = found["rows"]
    assert (row["contender"], row["hosts"], row["size"], row["path"]) == ("inaproto", 2, 65536, "switch")
    assert len(row["samples_us"]) == 2
    assert min(row["samples_us"]) > 0
    assert row["cpu_s_per_gb"] > 0
    assert row["packets"] == 2 * 2 * 2 * 65
    assert row["resent"] is not None
    assert (found["line_rate_bps"], found["ratios"]) == (200_000_000, [])
    assert found["peers"]["inaproto"]["version"].startswith("inaproto ")


def test_a_peer_that_is_not_there_leaves_the_others(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--sizes", "64K", "--only", "buffer,gloo", "--rounds", "1", "--apart"]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    found = bench(tmp_path, *words, "--tools-python", str(python))
    assert [row["contender"] for row in found["rows"]] == ["buffer"]
    assert found["peers"]["buffer"]["measured"] is True
    assert found["peers"]["gloo"]["measured"] is False
    assert "does not load" in found["peers"]["gloo"]["why_not"]


def test_what_fails_is_told(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    words = ["--hosts", "2", "--sizes", "64K", "--only", "inaproto", "--plot", str(picture)]
    found = bench(tmp_path, *words, "--host-option", "--nonsense", code=1)
    assert found["rows"] == []
    assert "2 hosts: h0 ended with status 2 before it was ready" in found["failures"][0]
    assert found["peers"]["inaproto"] == {"measured": False, "version": None, "why_not": "it failed"}
    assert "<svg" in picture.read_text()


def test_another_inaproto_takes_turns(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--sizes", "64K", "--only", "inaproto", "--rounds", "1", "--apart"]
    found = bench(tmp_path, *words, "--before", sys.executable)
    assert [(row["contender"], row["path"]) for row in found["rows"]] == [
        ("inaproto", "switch"),
        ("before", "switch"),
    ]
    [ratio] = found["ratios"]
    assert (ratio["contender"], ratio["peer"]) == ("inaproto", "before")
    assert found["peers"]["before"]["measured"] is True


def test_open_mpi_takes_turns_with_daemons(tmp_path: Path) -> None:
    tools_with("mpi")
    words = ["--hosts", "2", "--sizes", "64K,1M", "--only", "inaproto,mpi", "--rounds", "2", "--group", "2"]
    found = bench(tmp_path, *words)
    assert [row["contender"] for row in found["rows"]] == ["inaproto", "mpi"] * 2
    assert found["peers"]["mpi"]["version"].startswith("Open MPI")


def test_gloo_takes_turns_with_daemons(tmp_path: Path) -> None:
    require_namespaces()
    tools_with("gloo")
    picture = tmp_path / "picture.svg"
    words = ["--hosts", "2,3", "--link", "100M", "--sizes", "64K,256K", "--rounds", "2", "--loss", "0.1%"]
    found = bench(tmp_path, *words, "--group", "2", "--busy", "1", "--plot", str(picture))
    assert [(row["hosts"], row["size"], row["contender"]) for row in found["rows"]] == [
        (hosts, size, name) for hosts in (2, 3) for size in (65536, 262144) for name in ("inaproto", "gloo")
    ]
    assert all(row["resent"] is not None for row in found["rows"])
    assert [ratio["peer"] for ratio in found["ratios"]] == ["gloo"] * 4
    assert found["peers"]["gloo"]["version"].startswith("torch ")
    assert "<svg" in picture.read_text()
