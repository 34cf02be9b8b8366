"""The contract that every NIC keeps, kept by kernel RoCE devices through verbs: run in the guest."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

import inaproto
from inaproto_hil.softroce.guest import boot
from inaproto_hil.softroce.image import Image
from tests.hil import HANG_S
from tests.hil.softroce.wire import Wire

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]

TREE = Path(inaproto.__file__).parents[1]


@pytest.mark.parametrize("network", [{}, {"vlan": 5, "ipv6": True}], ids=["IPv4", "IPv6 in a VLAN"])
async def test_verbs_keep_the_nic_contract(softroce: Image, network: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="ina-") as folder:
        wire = Wire(Path(folder, "wire.sock"))
        async with trio.open_nursery() as nursery:
            await nursery.start(wire.run)
            async with boot(softroce, [wire.path] * 2, mtu=4096, **network) as guest:
                addresses = ",".join(host.ip for host in guest.hosts)
                argv = [
                    sys.executable,
                    "-P",
                    "-m",
                    "pytest",
                    "-p",
                    "no:xdist",
                    "tests/contract/test_nic_verbs.py",
                ]
                env = {"INAPROTO_VERBS_PAIR": addresses}
                nics = [sys.executable, "-P", "-m", "inaproto.cli", "nics", "--json"]
                listed = await guest.run(nics, cwd=TREE)
                ended = await guest.run(argv, env=env, cwd=TREE)
            nursery.cancel_scope.cancel()
    assert ended.rc == 0, ended.out + ended.err
    found = json.loads(listed.out)
    assert [one["ip"] for one in found] == addresses.split(",")
    assert all(one["usable"] and one["mac"] and one["interface"] for one in found)
