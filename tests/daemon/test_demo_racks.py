"""``inaproto demo racks`` in small: a flap, a leaf without memory, its return; and interrupted ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from inaproto_hil.rigs.cluster import inaproto_command
from tests.child_processes import processes_of, shared_memory, still_there

RUN_TIMEOUT_S = 600
ACT = (inaproto_command(), "demo", "racks", "--flaps", "1", "--steps", "4")
LAST_LINE = re.compile(
    r"identical=(?P<identical>yes|no) fallbacks=(?P<fallbacks>\d+) returned=(?P<returned>yes|no)( \w+=\S+)*"
)
PROCESSES = 3 + 4 + 8


@pytest.mark.timeout(RUN_TIMEOUT_S + 20)
def test_racks_train_to_the_bytes_of_one_process_whatever_happens_to_them(tmp_path: Path) -> None:
    argv = [*ACT, "--epochs", "1", "--seed", "5", "--out", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    assert found is not None, done.stdout
    assert (found["identical"], found["returned"]) == ("yes", "yes")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert int(found["fallbacks"]) == summary["fallbacks"] > 0
    assert len(set(summary["weights_sha256"].values())) == 1
    assert len(summary["weights_sha256"]) == 8 + 1
    assert summary["plan"] == "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]"
    assert summary["link_cuts"] == 1
    assert summary["steps_by_path"]["chain"] >= 4
    assert min(summary["summed_after_return"].values()) > 0
    kinds = [event["kind"] for event in summary["events"]]
    happened = [kind for kind in kinds if kind in ("cut", "mended", "reboot")]
    assert happened == ["cut", "mended", "reboot", "reboot"]
    assert "halted" not in kinds[: kinds.index("reboot")]  # a flap costs time alone
    assert kinds.index("reboot") < kinds.index("fallback") < len(kinds) - 1 - kinds[::-1].index("returned")
    fallbacks = [event["text"] for event in summary["events"] if event["kind"] == "fallback"]
    assert all("is not summed in the switch: " in text for text in fallbacks)
    assert all(text in done.stdout for text in fallbacks)
    assert (tmp_path / "racks.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.timeout(RUN_TIMEOUT_S + 20)
def test_an_interrupted_act_leaves_nothing(tmp_path: Path, runtime_dir: Path) -> None:
    argv = [*ACT, "--epochs", "10000", "--out", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(runtime_dir)}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as act:
        assert act.stdout is not None
        try:
            for line in act.stdout:
                if "killed (SIGKILL)" in line:  # the act is in the middle of a reboot
                    break
            processes = processes_of(act.pid)
            (directory,) = runtime_dir.glob("ina-*")
            act.send_signal(signal.SIGTERM)
            _, complaint = act.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            act.kill()
    assert act.returncode == 130, complaint
    assert "racks: interrupted" in complaint
    assert len(processes) in (PROCESSES, PROCESSES + 1)  # a fork server; the leaf may be dead at the moment
    assert not still_there(processes)
    assert not directory.exists()
    assert not shared_memory()
