"""Congestion control of host daemons, live: a switch of the network marks packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto.wire.ipv4 import internet_checksum
from tests.clusters.machines import Bench, bench
from tests.daemon.test_allreduce_end_to_end import reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S, status
from tests.daemon.test_real_fabrics import as_from_hardware, between, is_roce, start_host
from tests.daemon.test_real_links_rings import inputs, joined
from tests.namespaces import namespaces, require_namespaces

OPCODE = 42
CNP = 0x81
MARKS = ("marks_received", "cnps_sent", "cnps_received")
LINK_MBIT = ("--dcqcn-mbit", "1000")


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def congested(frame: bytes) -> bytes:
    """As a switch of the network forwards it whose queue is long: marked, if its sender minds that."""
    if not is_roce(frame) or not frame[15] & 3:
        return frame
    header = bytearray(frame[14:34])
    header[1] |= 3
    header[10:12] = bytes(2)
    header[10:12] = internet_checksum(header).to_bytes(2, "big")
    return frame[:14] + bytes(header) + frame[34:]


def nics(found: Bench) -> list[dict[str, Any]]:
    """Counters of both hosts' NICs."""
    sockets = (str(found.directory / f"h{number}.sock") for number in range(2))
    return [status("--socket", socket)["hosts"][0]["nic"] for socket in sockets]


@pytest.mark.parametrize("more", [LINK_MBIT, ()], ids=["dcqcn", "off"])
async def test_marks_on_the_way_to_the_switch_come_back_to_who_sent(
    runtime_dir: Path, more: tuple[str, ...]
) -> None:
    """Results bear the marks of the packets that were summed; who gets them says so to whose flow it is."""
    cnps = 0

    def back(frame: bytes) -> bytes:
        nonlocal cnps
        cnps += is_roce(frame) and frame[OPCODE] == CNP
        return frame

    with (
        bench(runtime_dir) as found,
        namespaces("far 0", "far 1") as hosts,
        trio.fail_after(2 * DEADLINE_S),
    ):
        for port in found.ports:
            as_from_hardware(found.switch, port)
        found.start_switch()
        with between(found, hosts, congested, back):
            for number, where in enumerate(hosts):
                start_host(found, number, where, "eth0", *more)
            found.wait(lambda its: len(its["hosts"]) == 2, "both hosts known")
            async with joined(found) as comms:
                for seed in range(3):
                    await reduce_all(comms, inputs(2, seed))
                assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
                first, second = nics(found)
    if not more:
        assert {nic[name] for nic in (first, second) for name in MARKS} == {0}, "it bears none"
        assert cnps == 0
        return
    assert min(nic[name] for nic in (first, second) for name in MARKS) > 0
    assert first["cnps_received"] <= second["cnps_sent"]
    assert second["cnps_received"] <= first["cnps_sent"]
    assert cnps >= first["cnps_received"] + second["cnps_received"], "by the switch"
