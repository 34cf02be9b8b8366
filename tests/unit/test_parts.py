"""Parts that cannot be made leave nothing open."""

from __future__ import annotations

import pytest
import trio

from inaproto.daemon.settings.config import load_host_settings
from inaproto.errors import Unsupported
from inaproto.parts import HARDWARE_NIC, LINK, NIC, adapter_of, softnic_at
from inaproto.ports import FramePort, PortClosed
from inaproto_adapters.frames import FramesConfig, open_frame_pair
from tests.unit.test_config import HOST


async def test_the_port_of_a_nic_that_cannot_be_is_closed() -> None:
    """A host tries again and again, and an interface has one port of TAP at a time."""
    near, far = open_frame_pair(FramesConfig(frame_bytes_max=100))

    async def attach(port_path: str) -> FramePort:
        return near

    open_nic = softnic_at(attach, adapter_of("softnic", NIC), load_host_settings(HOST, None, {}).settings)
    with pytest.raises(Unsupported, match="frames of 100 bytes"):
        await open_nic("")
    with pytest.raises(PortClosed), trio.fail_after(5):
        await near.receive()
    await far.aclose()


def test_an_adapter_of_another_kind_is_refused() -> None:
    with pytest.raises(Unsupported, match="as link is not available: it is for nic"):
        adapter_of("softnic", LINK, HARDWARE_NIC)
