"""``inaproto doctor`` where there are RoCE devices of the kernel: what is right, what is planted wrong."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto_hil.softroce.guest import Guest, boot
from inaproto_hil.softroce.image import Image
from tests.hil import HANG_S
from tests.hil.softroce.wire import Wire

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]


async def doctor(guest: Guest, *arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit status, and findings by check."""
    argv = [sys.executable, "-P", "-m", "inaproto.cli", "doctor", "--json", "--nic", "verbs", *arguments]
    ended = await guest.run(argv)
    assert ended.rc in {0, 1}, ended.out + ended.err
    assert ended.out, ended.err
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(ended.out):
        found.setdefault(one["check"], []).append(one)
    return ended.rc, found


def outcome(found: dict[str, list[dict[str, Any]]], check: str) -> str:
    [one] = {str(one["outcome"]) for one in found[check]}
    return one


async def test_a_machine_of_two_roce_hosts(softroce: Image) -> None:
    with tempfile.TemporaryDirectory(prefix="ina-") as folder:
        wire = Wire(Path(folder, "wire.sock"))
        async with trio.open_nursery() as nursery:
            await nursery.start(wire.run)
            async with boot(softroce, [wire.path] * 2, mtu=1024) as guest:
                here, there = guest.hosts
                _, found = await doctor(guest, "--ip", here.ip, "--peer", there.ip)
                for check in ("rdma-core", "rdma-permissions", "gid", "rdma-mtu", "link", "mtu"):
                    assert outcome(found, check) == "ok", found[check]
                assert [one["outcome"] for one in found["rdma-devices"]] == ["ok", "ok"]
                assert f"{here.ip} is GID 1 (RoCE v2)" in found["gid"][0]["found"]
                assert outcome(found, "subnets") == "ok", "the guest's settings are those of several NICs"
                rc, found = await doctor(guest, "--ip", "10.0.0.99", "--mtu", "4096")
                assert rc == 1
                assert outcome(found, "gid") == "failed"
                assert {one["outcome"] for one in found["rdma-mtu"]} == {"failed"}
                assert "mtu 4200" in found["rdma-mtu"][0]["mend"]
            nursery.cancel_scope.cancel()
