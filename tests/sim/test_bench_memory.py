"""``inaproto bench allreduce --fabric memory``: right results, and just the traffic that a tree needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from inaproto.faults.announcement import announcement
from inaproto.sim.frames.draw.topology import fat_tree, leaf_spine
from inaproto_hil.bench.allreduce.command import allreduce
from inaproto_hil.bench.allreduce.link_traffic import Expected, LinkTraffic, Volume, arithmetic, compare
from inaproto_hil.bench.allreduce.memory import MemoryConfig, measure_row

QUICK = [
    "--fabric",
    "memory",
    "--dtype",
    "float32",
    "--sizes",
    "4K",
    "--mtu",
    "256",
    "--message-packets",
    "6",
]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(allreduce, arguments, catch_exceptions=False)


def report(*arguments: str) -> dict[str, Any]:
    done = bench(*arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_fat_tree_carries_one_copy_up_and_one_down() -> None:
    found = report("--topology", "fat-tree:4", "--hosts", "16", *QUICK)
    assert (found["wrong"], found["traffic_ok"], found["fabric"], found["time"]) == (
        0,
        True,
        "memory",
        "virtual",
    )
    assert (found["topology"]["standby_switches"], len(found["topology"]["switches"])) == (7, 13)
    (row,) = found["rows"]
    assert (row["size"], row["wrong"], row["traffic_ok"]) == (4096, 0, True)
    assert len(row["links"]) == 16 + 12
    volume = Volume.of(4096, mtu=256, message_packets=6)
    for link in row["links"]:
        for way in (link["up"], link["down"]):
            assert way["first"] == {"frames": volume.packets, "payload_bytes": volume.payload_bytes}
            assert (way["again"]["frames"], way["other"]) == (0, 0)
            assert way["notes"]["frames"] == way["expected"]["notes"]


def test_the_ring_crosses_each_trunk_once_and_tells_of_each_message_twice() -> None:
    volume = Volume.of(4096, mtu=256, message_packets=6)
    found = arithmetic(leaf_spine(2, 4), (0, 1, 2, 3), volume)
    trunk = Expected(volume.packets, volume.payload_bytes, 2 * volume.messages)
    assert found["leaf0>spine"] == found["leaf1>spine"] == (trunk, trunk)
    assert found["host2>leaf1"] == (Expected(volume.packets, volume.payload_bytes),) * 2


def test_links_outside_the_tree_carry_nothing() -> None:
    found = arithmetic(fat_tree(4, 8), (4, 6), Volume(3, 500, 1, 2))
    assert found["pod1-agg0>core0"] == (Expected(), Expected())
    assert found["pod0-edge0>pod0-agg0"] == found["host0>pod0-edge0"] == (Expected(), Expected())
    assert found["pod1-edge0>pod1-agg0"] == (Expected(3, 500, 2), Expected(3, 500, 2))


@pytest.mark.parametrize(
    ("nbytes", "packets", "messages", "openings"),
    [(1, 1, 1, 1), (216, 1, 1, 1), (217, 2, 1, 2), (1496, 6, 1, 2), (1497, 7, 2, 3), (2992, 12, 2, 4)],
)
def test_how_an_operation_is_cut(nbytes: int, packets: int, messages: int, openings: int) -> None:
    volume = Volume.of(nbytes, mtu=256, message_packets=6)
    assert volume == Volume(packets, nbytes + 40 * messages, messages, openings)


def test_traffic_that_differs_is_told() -> None:
    traffic = LinkTraffic()
    traffic.see("host0>a", announcement(bytes(6), bytes(4)))
    traffic.see("host0>a", np.zeros((1, 80), np.uint8))
    wanted = {"host0>a": (Expected(1, 10), Expected()), "host1>a": (Expected(), Expected())}
    (first, second), is_right = compare(traffic, wanted)
    assert not is_right
    assert (first["ok"], first["up"]["ok"], first["down"]["ok"], second["ok"]) == (False, False, True, True)
    assert (first["up"]["announcements"], first["up"]["other"]) == (1, 1)


def test_wrong_elements_are_counted_and_shown() -> None:
    config = MemoryConfig(3, "", (512,), ("int32",), "max", 2, 1, 2, 4, 256, 1)
    done = measure_row(config, config.tree(), "int32", 512)
    assert (done.row.wrong, done.row.ranks, len(done.row.samples_s)) == (0, 3, 2)
    assert all(sample > 0 for sample in done.row.samples_s)
    assert done.traffic_ok


def test_a_table_for_people(tmp_path: Path) -> None:
    done = bench("--topology", "leaf-spine:2", "--hosts", "3", *QUICK, "--json", str(tmp_path / "r"))
    assert done.exit_code == 0, done.output
    assert "3 hosts, leaf-spine:2 (3 switches)" in done.output
    assert "# leaf1>spine" in done.output
    assert "one copy up and one down each link OK" in done.output
    assert json.loads((tmp_path / "r").read_text())["traffic_ok"]


def test_two_runs_are_the_same() -> None:
    first, second = (report("--hosts", "2", *QUICK) for _ in range(2))
    assert first["rows"] == second["rows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topology", "fat-tree:4"], "--topology is for --fabric memory"),
        (["--fabric", "memory", "--weather", "drop=0.1"], "no weather"),
        (["--fabric", "memory", "--timeout", "3"], "no timeout"),
        (["--fabric", "memory", "--hosts", "65"], "at most 64 hosts"),
        (["--fabric", "memory", "--topology", "fat-tree:3"], "k is even"),
        (["--fabric", "memory", "--sizes", "4"], "less than one element"),
        (["--fabric", "memory", "--sizes", "x"], "'x' is not a size"),
        ([*QUICK, "--window", "3"], "no power of two"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], words: str) -> None:
    done = bench(*arguments)
    assert done.exit_code != 0
    assert words in done.output
