"""The sharing demo's jobs, as ``inaproto report`` tells them after their end: to the byte what ranks, hosts
and switches have counted, each by itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner

from inaproto_controller.report.command import report
from inaproto_controller.report.document import packets
from inaproto_hil.demo import sharing
from inaproto_hil.rigs.sharing_cluster import SharingCluster

STEPS = 8


def told(job: str, status: Path) -> dict[str, Any]:
    answer = CliRunner().invoke(report, [job, "--from", str(status), "--json"])
    assert answer.exit_code == 0, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_the_report_agrees_with_all_counters_to_the_byte(tmp_path: Path) -> None:
    said: list[str] = []
    tally = sharing.Tally()
    with SharingCluster(
        log_dir=tmp_path, spines=2, racks=sharing.THREE_RACKS, apart=[("leaf2", "spine1")], share_max=2
    ) as cluster:
        config = sharing.Config(steps=STEPS)
        assert trio.run(sharing.play, cluster, config, tmp_path, said.append, tally), said
    status = json.loads((tmp_path / "status.json").read_text())
    found = {job: told(job, tmp_path / "status.json") for job in sharing.MODELS}
    for job, one in found.items():
        # What a rank saw, call by call, in its own process.
        ranks = Counter((seen.path, seen.nbytes) for seen in tally.seen[job])
        for host in one["by_host"]:
            rows = Counter({(row["path"], row["size"]): row["operations"] for row in host["rows"]})
            assert rows == ranks, (job, host["host"])
        for path in one["paths"]:
            mine = [seen.nbytes for seen in tally.seen[job] if seen.path == path["path"]]
            assert (path["operations"], path["bytes"]) == (len(mine), sum(mine)), (job, path)
        assert {path["path"] for path in one["paths"]} == {"switch", "chain"}
        assert one["has_ended"]
        assert len(one["hosts_told"]) == one["hosts"] == 4
        assert one["measured"]["bytes_compared"] > 0
        assert one["by_model"]["saved_s"] > 0
        assert any("take turns" in reason["reason"] for reason in one["reasons"])
    # What each host counts over all jobs.
    for host in status["hosts"]:
        sums: Counter[str] = Counter()
        for one in found.values():
            for mine in one["by_host"]:
                if mine["host"] == host["name"]:
                    sums.update({path: int(nbytes) for path, nbytes in mine["bytes_by_path"].items()})
        assert sums == host["totals"]["bytes_by_path"], host["name"]
    # What the switches count: packets of results, which bytes of tensors say exactly.
    needed = sum(
        row["operations"] * packets(row["size"], 1024, 170)
        for one in found.values()
        for host in one["by_host"]
        for row in host["rows"]
        if row["path"] == "switch"
    )
    switches = [status["switch"], *status["other_switches"]]
    counted = sum(one["accelerator"]["counters"]["results_out"] for one in switches)
    assert all(one["agreement"]["switches"]["results_out"] == counted for one in found.values())
    assert all(one["agreement"]["switches"]["packets_of_all_reduces"] == needed > 0 for one in found.values())
    # A ring that ends has summed no more in vain than the windows of its hosts.
    ends = sum(mine["recoveries"] for one in found.values() for mine in one["by_host"])
    window = status["hosts"][0]["window_messages"] * status["hosts"][0]["message_packets"]
    assert 0 <= counted - needed <= ends * window
