"""``inaproto inspect``: what it prints, its exit status, and captures that cannot be used."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from inaproto.wire.files.pcapng import CaptureWriter, Direction, Interface
from inaproto_hil.inspect.command import inspect
from tests.inspect.captures import Passed, frames_of, pcapng, ring_world, tap
from tests.inspect.damages import DAMAGES


@pytest.fixture(scope="module")
def clean() -> list[Passed]:
    return tap(ring_world("command", elements=(900, 300, 1000, 700)))


def damaged(clean: list[Passed], name: str) -> tuple[bytes, int]:
    capture, wrong = DAMAGES[name][1](clean)
    return pcapng(capture), wrong + 1


def test_a_clean_capture(clean: list[Passed], tmp_path: Path) -> None:
    path = tmp_path / "clean.pcapng"
    path.write_bytes(pcapng(clean))
    result = CliRunner().invoke(inspect, [str(path)])
    assert result.exit_code == 0, result.output
    assert f"{len(clean)} frames, {len(clean)} RoCEv2 packets: no rule is broken" in result.output
    assert "10.0.0.1 -> 10.0.0.2" in result.output
    assert "21 of 23 rules applied" in result.output


def test_names_of_interfaces_are_no_markup(clean: list[Passed], tmp_path: Path) -> None:
    writer, path = CaptureWriter([Interface("up[/x]"), Interface("p[1]")]), tmp_path / "named.pcapng"
    frames = [np.frombuffer(one.data, np.uint8).reshape(1, -1) for one in frames_of(clean)[:5]]
    packets = [bytes(writer.packets(nth % 2, 1000, one, Direction.INBOUND)) for nth, one in enumerate(frames)]
    path.write_bytes(b"".join([writer.header(), *packets]))
    result = CliRunner().invoke(inspect, [str(path)])
    assert result.exit_code in {0, 1}, result.output
    assert "up[/x] in" in result.output
    assert "p[1] in" in result.output


@pytest.mark.parametrize("options", [[], ["--packet", "1"], ["--json", "-"]])
def test_a_file_that_cannot_be_read_on_is_said_to_be(options: list[str]) -> None:
    """The first page of a process's memory is not there: to read it fails, after the file was opened."""
    result = CliRunner().invoke(inspect, [*options, "/proc/self/mem"])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit), result.exception
    assert "inaproto inspect: /proc/self/mem cannot be read: Input/output error" in result.stderr


def test_a_wrong_sum_is_shown_with_what_it_should_be(clean: list[Passed], tmp_path: Path) -> None:
    data, wrong = damaged(clean, "one bit of a sum")
    path = tmp_path / "wrong.pcapng"
    path.write_bytes(data)
    result = CliRunner().invoke(inspect, [str(path), "--no-connections"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == f"frame {wrong} breaks a rule: wrong sum"
    assert "out of the switch" in lines[1]
    assert lines[2].startswith("  connection  10.0.0.2 -> 10.0.0.3 qp ")
    assert "NetReduce §3.1" in lines[3]
    assert lines[4].startswith("  expected    element 2 of packet ")
    assert "1 of 64 elements are wrong" in lines[5]
    assert any(line.strip(" ") == "^^ ^^" or "^^" in line for line in lines)
    assert lines[-1].endswith("one packet breaks a rule")


def test_json_names_the_frame_and_the_bytes(clean: list[Passed], tmp_path: Path) -> None:
    data, wrong = damaged(clean, "another rkey")
    path = tmp_path / "wrong.pcapng"
    path.write_bytes(data)
    result = CliRunner().invoke(inspect, [str(path), "--json", "-"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["first"][0]["frame"] == wrong
    assert report["first"][0]["rule"] == "wrong rkey"
    assert report["first"][0]["wrong_bytes"] == [62, 66]
    assert report["rules"]["wrong rkey"] > 0
    assert len(report["connections"]) == 3
    out = tmp_path / "report.json"
    assert CliRunner().invoke(inspect, [str(path), "--json", str(out)]).exit_code == 1
    assert json.loads(out.read_text()) == report


def test_all_packets_that_break_a_rule(clean: list[Passed], tmp_path: Path) -> None:
    data, wrong = damaged(clean, "another key")
    path = tmp_path / "wrong.pcapng"
    path.write_bytes(data)
    lines = CliRunner().invoke(inspect, [str(path), "--all"]).output.splitlines()
    assert lines[0] == f"frame {wrong} breaks a rule: wrong key"
    assert sum(line.startswith("frame ") and "result too early" in line for line in lines) >= 1


def test_a_key_is_never_shown(clean: list[Passed], tmp_path: Path) -> None:
    data, _ = damaged(clean, "another key")
    path = tmp_path / "wrong.pcapng"
    path.write_bytes(data)
    said = CliRunner().invoke(inspect, [str(path), "--no-connections"]).output.partition("    0000")[0]
    assert "0001020304050607" not in said
    assert str(0x0001020304050607) not in said


def test_one_packet_is_shown(clean: list[Passed], tmp_path: Path) -> None:
    path = tmp_path / "clean.pcapng"
    path.write_bytes(pcapng(clean))
    result = CliRunner().invoke(inspect, [str(path), "--packet", "1"])
    assert result.exit_code == 0
    assert "RC_WRITE" in result.output
    assert "ina         INA ring" in result.output
    beyond = CliRunner().invoke(inspect, [str(path), "--packet", "99999"])
    assert beyond.exit_code == 2
    assert f"the last is {len(clean)}" in beyond.output


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"GIF89a....", "neither pcapng nor pcap"),
        (CaptureWriter([Interface("h0")]).header(), "0 frames, none of them RoCEv2"),
    ],
)
def test_what_cannot_be_used_is_said(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "no.pcapng"
    path.write_bytes(data)
    result = CliRunner().invoke(inspect, [str(path)])
    assert result.exit_code == 2
    assert said in result.output


def test_a_file_that_is_cut_off_is_judged_as_far_as_it_goes(clean: list[Passed], tmp_path: Path) -> None:
    path = tmp_path / "cut.pcapng"
    path.write_bytes(pcapng(clean)[:-7])
    result = CliRunner().invoke(inspect, [str(path)])
    assert result.exit_code == 2
    assert "no rule is broken, as far as the file can be read" in result.output
    assert f"{len(clean) - 1} frames before it were read" in result.output


def test_a_pipe_is_judged_as_it_comes(clean: list[Passed]) -> None:
    """The bad packet is told while the capture still goes on."""
    data, wrong = damaged(clean, "one bit of a sum")
    argv = [sys.executable, "-m", "inaproto.cli", "inspect", "-"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(data)
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"frame {wrong} breaks a rule: wrong sum\n"
        process.stdin.close()
        assert process.stdout.read().decode().endswith("one packet breaks a rule\n")
        assert process.wait() == 1


def test_the_dissector_is_where_it_is_said_to_be() -> None:
    result = CliRunner().invoke(inspect, ["--dissector-path"])
    assert result.exit_code == 0
    assert Path(result.output.strip()).read_text().startswith("-- Wireshark dissector")


def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    clean: list[Passed], tmp_path: Path
) -> None:
    path = tmp_path / "clean.pcapng"
    path.write_bytes(pcapng(clean))
    for wrong, why in ((tmp_path, "is a directory"), (tmp_path / "no" / "x", "there is no directory")):
        result = CliRunner().invoke(inspect, ["--json", str(wrong), str(path)])
        assert result.exit_code == 2
        assert why in result.stderr
        assert not result.stdout
    both = CliRunner().invoke(inspect, ["--packet", "1", "--json", "-", str(path)])
    assert both.exit_code == 2
    assert "not both" in both.stderr


def test_a_disk_that_is_full_at_the_end_takes_the_json_alone(clean: list[Passed], tmp_path: Path) -> None:
    path = tmp_path / "clean.pcapng"
    path.write_bytes(pcapng(clean))
    result = CliRunner().invoke(inspect, ["--json", "/dev/full", str(path)])
    assert result.exit_code == 2
    assert "/dev/full cannot be written: No space left on device" in result.stderr
    assert "no rule is broken\n" in result.stdout


def test_a_compressed_capture_says_what_it_is(clean: list[Passed], tmp_path: Path) -> None:
    path = tmp_path / "clean.pcapng.gz"
    path.write_bytes(gzip.compress(pcapng(clean)))
    result = CliRunner().invoke(inspect, [str(path)])
    assert result.exit_code == 2
    assert "is compressed by gzip" in result.stderr
