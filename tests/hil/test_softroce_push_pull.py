"""Words and arrays of models over queue pairs of kernel RoCE devices: run in the guest."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import trio

import inaproto
from inaproto_hil.softroce.guest import boot
from inaproto_hil.softroce.image import Image
from tests.hil import HANG_S
from tests.hil.softroce.wire import Wire

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]

TREE = Path(inaproto.__file__).parents[1]
TESTS = "tests/contract/test_message_channel_verbs.py"


async def test_a_host_and_a_server_speak_by_their_devices_and_channels_keep_their_contract(
    softroce: Image,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ina-") as folder:
        wire = Wire(Path(folder, "wire.sock"))
        async with trio.open_nursery() as nursery:
            await nursery.start(wire.run)
            async with boot(softroce, [wire.path] * 2, mtu=4096) as guest:
                env = {"INAPROTO_VERBS_PAIR": ",".join(host.ip for host in guest.hosts)}
                argv = [sys.executable, "-P", "-m", "pytest", "-p", "no:xdist", TESTS]
                ended = await guest.run(argv, env=env, cwd=TREE)
            nursery.cancel_scope.cancel()
    assert ended.rc == 0, ended.out + ended.err
