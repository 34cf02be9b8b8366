"""Parts that cannot be made leave nothing open."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from inaproto import parts
from inaproto.daemon.settings.config import load_host_settings
from inaproto.errors import ConfigError, Unsupported
from inaproto.parts import FRAME_PORT, HARDWARE_NIC, LINK, NIC, adapter_of, frame_ports_of, nic_of, softnic_at
from inaproto.ports import Adapter, FramePort, PortClosed
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
    with pytest.raises(PortClosed), trio.fail_after(600):
        await near.receive()
    await far.aclose()


def test_an_adapter_of_another_kind_is_refused() -> None:
    with pytest.raises(Unsupported, match="as link is not available: it is for nic"):
        adapter_of("softnic", LINK, HARDWARE_NIC)


def test_frame_ports_are_of_what_can_meet_at_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter of somebody else's that forgot one end is told so at start, by name."""

    class OneEnd:
        async def connect(self, path: Path, *, wait_ns: int) -> FramePort:
            raise NotImplementedError

    wire = Adapter(name="mywire", kinds=frozenset({FRAME_PORT}), open=OneEnd)
    monkeypatch.setattr(parts, "adapter_of", lambda name, kind: wire)
    with pytest.raises(Unsupported, match=r"mywire.*what it opens has no listen"):
        frame_ports_of("mywire")


async def test_a_device_has_the_vlan_of_its_interface() -> None:
    settings = load_host_settings({**HOST, "vlan": 7, "nic": "verbs"}, None, {}).settings
    with pytest.raises(
        ConfigError, match="vlan: 7 is for the softnic; nic verbs is in the VLAN of the inter"
    ):
        await nic_of(settings)


@pytest.mark.parametrize(
    ("ip", "words"),
    [
        ("fd00::zz", "such as 10.0.0.1 or fd00::1"),
        ("ff02::1", "of one host"),
        ("fe80::1%eth0", "of one host"),
    ],
)
def test_addresses_that_no_host_has(ip: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_host_settings({**HOST, "ip": ip}, None, {})


def test_a_host_with_an_ipv6_address_has_a_mac_made_of_it() -> None:
    settings = load_host_settings({**HOST, "ip": "FD00:0::0001"}, None, {}).settings
    assert (settings.ip, len(settings.ip_bytes), settings.mac_bytes[:2]) == ("fd00::1", 16, b"\2\0")
