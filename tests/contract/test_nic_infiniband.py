"""The NIC contract over the NIC in memory by which jobs on InfiniBand are tried: one that it does not keep
would say nothing of them. Over real ports: ``INAPROTO_VERBS_PAIR`` with their GIDs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

from inaproto.ports import FramePort, Nic
from inaproto.units import US
from inaproto_adapters.memory import Link, open_memory_pair
from inaproto_adapters.softnic import SoftNicConfig
from tests.clusters.infiniband import InfinibandNic, ethernet_of
from tests.contract.nic_contract import NicContract


def nic_of(port: FramePort, host: int) -> Nic:
    mac, ip = ethernet_of(host)
    made = InfinibandNic(port, SoftNicConfig(mac=mac, ip=ip))
    made.host = host
    return made


class TestInfinibandInMemory(NicContract):
    @pytest.fixture
    def clock(self, autojump_clock: MockClock) -> MockClock:
        return autojump_clock

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Nic, Nic]]:
        ports = open_memory_pair(Link(latency_ns=5 * US, bandwidth_bps=100_000_000_000))
        nics = nic_of(ports[0], 0), nic_of(ports[1], 1)
        yield nics
        for nic in nics:
            await nic.aclose()
