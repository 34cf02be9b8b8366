"""``inaproto sharp probe`` over the double, in two processes: what its record has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from inaproto_adapters.sharp_command import sharp
from tests.sharp_double import FOLDER, Double

END_S: Final = 300


def probed(double: Double, folder: Path, *more: str) -> tuple[dict[str, Any], int]:
    """The record of rank 0, and its exit status."""
    words = ["--hub", str(folder / "hub"), "--key", "k", "--library", str(double.path), "--cycles", "2"]
    command = [sys.executable, "-m", "inaproto", "sharp", "probe", *words, "--size-max", "512K", *more]
    processes = [
        subprocess.Popen([*command, "--json", str(folder / "record")], env={**os.environ, **launched})
        for launched in ({"PMI_RANK": str(rank), "PMI_SIZE": "2"} for rank in range(2))
    ]
    try:
        statuses = [process.wait(END_S) for process in processes]
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
    return json.loads((folder / "record").read_text()), statuses[0]


def test_a_record_has_what_was_asked_of_all_ranks(sharp_double: Double, runtime_dir: Path) -> None:
    sharp_double.place("a:1", [1])
    record, status = probed(
        sharp_double, runtime_dir, "--include", str(FOLDER), "--devices", "a:1", "--locks"
    )
    assert status == 0
    assert [each["rank"] for each in record["ranks"]] == [0, 1]
    for each in record["ranks"]:
        assert each["library"]["abi_check"]["passes"]
        assert len(each["library"]["sha256"]) == 64
        assert "SHARP_COLL_ENABLE_SAT" in each["print_config"]
        assert each["caps"]["resources.max_osts"] == 256
        assert len(each["cycles"]) == 2
        assert all(cycle["ns"][name] > 0 for cycle in each["cycles"] for name in ("init", "finalize"))
        assert {row["dtype"]: row.get("wrong") for row in each["answers"]} == dict.fromkeys(
            ("F32", "I32", "F16", "BF16", "F64", "I64"), 0
        )
        for rows in each["latency"].values():
            assert [row["bytes"] for row in rows] == [8 << shift for shift in range(0, 17, 2)]
            assert all(row["ns_median"] > 0 for row in rows)
        assert "ENO_RESOURCE (-20)" in each["locks"]["second"]


def test_switches_without_a_type_or_a_tree_are_no_failure_of_the_probe(
    sharp_double: Double, runtime_dir: Path
) -> None:
    sharp_double.set(preset=0)
    record, status = probed(sharp_double, runtime_dir)
    assert status == 0
    answers = {row["dtype"]: row for row in record["ranks"][0]["answers"]}
    assert "the switches lack BF16" in answers["BF16"]["error"]
    assert answers["F32"]["wrong"] == 0
    assert "ENOT_SUPP (-2)" in record["ranks"][0]["latency"]["streaming tree"][0]["error"]


def test_a_manager_that_refuses_is_in_the_record(sharp_double: Double, runtime_dir: Path) -> None:
    sharp_double.inject("init", -9)
    record, status = probed(sharp_double, runtime_dir)
    assert status == 1
    assert all("EDEV (-9)" in cycle["error"] for cycle in record["ranks"][1]["cycles"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "start this by a launcher"),
        (("--rank", "0", "--size", "1", "--hub", "nowhere"), "HOST:PORT"),
        (("--rank", "0", "--size", "1", "--hub", "127.0.0.1:99999"), "a port is 1 to 65535"),
        (("--rank", "0", "--size", "1", "--hub", "a..b:5"), "is no name of a host"),
        (("--rank", "0", "--size", "1", "--size-max", "much"), "not a size"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    sharp_double: Double, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    for name in ("INAPROTO_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    given = ["probe", "--hub", "127.0.0.1:1", "--library", str(sharp_double.path), *words]
    done = CliRunner().invoke(sharp, given)
    assert done.exit_code == 2, done.output
    assert says in done.output


def test_a_library_that_is_none_of_sharp_is_refused_in_words(runtime_dir: Path) -> None:
    given = ["--hub", str(runtime_dir / "hub"), "--rank", "0", "--size", "1", "--library", "libm.so.6"]
    done = CliRunner().invoke(sharp, ["probe", *given])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "libm.so.6 has no sharp_coll_" in done.stderr
