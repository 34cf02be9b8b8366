"""Which packets a path carries is found out when a host daemon starts, on links whose ports differ.

A port drops in silence what is longer than its MTU: nothing else of this machine would tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

import inaproto
from inaproto.errors import JoinRefused
from tests.clusters.machines import Bench, bench
from tests.daemon.test_allreduce_end_to_end import reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_links_rings import inputs, joined, start_hosts
from tests.namespaces import require_namespaces


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def narrow(found: Bench, *ports: str) -> None:
    """These ports of the switch have Ethernet's usual MTU, though the hosts' have a larger one."""
    for port in ports:
        found.switch.ip("link", "set", port, "mtu", "1500")


def paths(found: Bench) -> Sequence[dict[str, Any]]:
    """What each host knows of its path, once all do: one is ready before the probes that it sent are back."""
    end = time.monotonic() + DEADLINE_S
    while True:
        hosts = sorted(found.status()["hosts"], key=lambda host: str(host["name"]))
        if all(host["path"] is not None for host in hosts):
            return [{"mtu": host["mtu"], **host["path"]} for host in hosts]
        assert time.monotonic() < end, f"a host never knew its path: {hosts}"


async def test_a_link_that_is_too_small_for_the_settings_is_named_to_who_joins(runtime_dir: Path) -> None:
    """Before, the job hung: its packets were dropped, and sent again for ever."""
    with bench(runtime_dir, mtu=9000) as found, trio.fail_after(2 * DEADLINE_S):
        narrow(found, "sw0", "sw1")
        found.start_switch()
        start_hosts(found, "--mtu", "4096")
        with pytest.raises(
            JoinRefused, match=r"rank 0 \(h0, pid .*mtu is 4096, and the path .* of 1024 bytes"
        ):
            await inaproto.connect("job", 0, size=2, key="k", socket=runtime_dir / "h0.sock")
        assert [path["problem"] != "" for path in paths(found)] == [True, True]


@pytest.mark.parametrize(("too_small", "mtu"), [((), 4096), (("sw1",), 1024)])
async def test_hosts_find_the_largest_mtu_and_a_ring_has_the_smallest_of_these(
    runtime_dir: Path, too_small: Sequence[str], mtu: int
) -> None:
    with bench(runtime_dir, mtu=9000) as found, trio.fail_after(2 * DEADLINE_S):
        narrow(found, *too_small)
        found.start_switch()
        start_hosts(found, "--mtu", "auto")
        async with joined(found) as comms:
            await reduce_all(comms, inputs(2, 0))
            assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
            assert [path["carries"] for path in paths(found)] == [4096, mtu]
            assert found.drops() == {}
            packets = [host["nic"]["packets_sent"] for host in found.status()["hosts"]]
            few = 800_000 / mtu  # of tensor, and acknowledgements
            assert all(few < sent < 2 * few for sent in packets), packets


async def test_a_host_that_can_do_with_a_smaller_mtu_takes_that_of_one_that_cannot(runtime_dir: Path) -> None:
    with bench(runtime_dir, mtu=9000) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch()
        common = ("host", "--dir", str(runtime_dir), "--port", "packet:eth0", "--message-packets", "168")
        for number, options in enumerate((("--mtu", "auto"), ("--mtu", "1024"))):
            where, ip = found.hosts[number], f"10.5.0.{number + 1}"
            host = found.daemon(where, *common, "--name", f"h{number}", "--ip", ip, *options)
            assert host.ready_line.startswith("ready")
        async with joined(found) as comms:
            await reduce_all(comms, inputs(2, 0))
            assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}


async def test_a_port_that_is_made_smaller_under_a_job_is_named(runtime_dir: Path) -> None:
    with bench(runtime_dir, mtu=9000) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch()
        start_hosts(found, "--mtu", "auto")
        async with joined(found) as comms:
            await reduce_all(comms, inputs(2, 0))
            assert found.status()["switch"]["narrow_ports"] == []
            narrow(found, "sw1")
            while not (told := found.status()["switch"]["narrow_ports"]):
                await trio.lowlevel.checkpoint()
            (named,) = told
            assert (named["port"], named["job"], named["mtu"], named["carries"]) == (
                "packet:sw1",
                "job",
                4096,
                1024,
            )
