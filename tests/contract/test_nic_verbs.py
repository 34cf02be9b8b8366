"""The NIC contract over two RDMA devices of this machine: Soft-RoCE's in a guest, or real ones.

``INAPROTO_VERBS_PAIR`` names the addresses of two devices that reach each other, ``10.0.0.1,10.0.0.2``, or on
InfiniBand the GIDs of two ports, which must be link-local ones (``fe80:``).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inaproto.ports import Nic, load_adapter
from tests.contract.nic_contract import NicContract

PAIR = os.environ.get("INAPROTO_VERBS_PAIR", "")


class TestVerbs(NicContract):
    @pytest.fixture
    def clock(self) -> None:
        """That of the machine."""

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Nic, Nic]]:
        open_nic = load_adapter("verbs").open
        addresses = [ipaddress.ip_address(one) for one in PAIR.split(",")]
        left, right = (open_nic(**{"gid" if one.is_link_local else "ip": one.packed}) for one in addresses)
        try:
            yield left, right
        finally:
            for nic in (left, right):
                await nic.aclose()


if not PAIR:
    del TestVerbs  # it is run in the guest of tests/hil
