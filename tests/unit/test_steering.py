"""Which frames a port takes where several processes have one on an interface, as the kernel's filter says."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.daemon.settings.config import SwitchSettings, load_switch_settings
from inaproto.errors import ConfigError
from inaproto.parts import links_of
from inaproto.ports import Steering
from inaproto.sim.frames.shards import shards_of
from inaproto.wire.roce import Bth, Opcode, RocePacket
from inaproto.wire.udp import shard_port
from inaproto_adapters.frames import PacketLink
from inaproto_adapters.frames.steering import steer

SHARDS = 3
CONTROL = Steering(shard_port(1), shard_port(SHARDS), takes=False)
"""Of the switch's own process."""


def of_shard(number: int) -> Steering:
    return Steering(shard_port(number), shard_port(number), takes=True)


ALL = (CONTROL, *map(of_shard, range(1, SHARDS + 1)))


def packet(source_port: int) -> RocePacket:
    return RocePacket.build(
        src_mac=b"\2\0\0\0\0\1",
        dst_mac=b"\2\0\0\0\0\2",
        src_ip=bytes((10, 0, 0, 1)),
        dst_ip=bytes((10, 0, 0, 2)),
        udp_source_port=source_port,
        bth=Bth(opcode=Opcode.RC_WRITE_MIDDLE, dest_qp=7, psn=1),
        payload=bytes(64),
    )


def takers(frame: bytes) -> list[int]:
    """Indices of ``ALL`` whose filter lets the frame pass."""
    found = []
    for index, steering in enumerate(ALL):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with here, there:
            there.setblocking(False)
            steer(there, steering)
            here.send(frame)
            try:
                assert there.recv(1 << 16) == frame
                found.append(index)
            except BlockingIOError:
                pass
    return found


@pytest.mark.parametrize(
    ("source_port", "taker"),
    [
        (shard_port(0), 0),
        (shard_port(1), 1),
        (shard_port(2), 2),
        (shard_port(3), 3),
        (shard_port(4), 0),
        (0xC000, 0),
        (0, 0),
        (0xFFFF, 0),
    ],
)
def test_a_shard_gets_what_comes_from_its_port_and_nobody_else_does(source_port: int, taker: int) -> None:
    assert takers(packet(source_port).encode_frame()) == [taker]


def frames_of_nobody() -> dict[str, bytes]:
    frame = packet(shard_port(2)).encode_frame()

    def patched(at: int, data: bytes) -> bytes:
        return frame[:at] + data + frame[at + len(data) :]

    return {
        "not IPv4": patched(12, b"\x08\x06"),
        "tagged": frame[:12] + b"\x81\x00\x00\x05" + frame[12:],
        "IP options": patched(14, b"\x46"),
        "TCP": patched(23, b"\x06"),
        "no first fragment": patched(20, struct.pack(">H", 8)),
        "not RoCE": patched(36, struct.pack(">H", 4792)),
        "to the port": patched(34, struct.pack(">HH", 4791, shard_port(2))),
        "without a UDP header": frame[:36],
        "without an IP header": frame[:14],
    }


@pytest.mark.parametrize("what", frames_of_nobody())
def test_everything_else_is_for_the_switchs_own_process(what: str) -> None:
    frame = frames_of_nobody()[what]
    expected = [] if len(frame) <= 36 else [0]  # what ends before what is to be read is no frame
    assert takers(frame) == expected


@given(st.data())
def test_the_filter_and_its_twin_of_the_simulated_world_agree(data: st.DataObject) -> None:
    frame = bytearray(packet(shard_port(data.draw(st.integers(0, SHARDS + 1)))).encode_frame())
    for at in data.draw(st.lists(st.sampled_from([12, 13, 14, 20, 21, 23, 34, 35, 36, 37]), max_size=2)):
        frame[at] = data.draw(st.integers(0, 255))
    twin = shards_of(np.frombuffer(bytes(frame), np.uint8)[None], SHARDS)
    assert takers(bytes(frame)) == twin.tolist()


# --- settings


def settings(**fields: object) -> SwitchSettings:
    return load_switch_settings({"dir": "/tmp/ina", **fields}, None, {}).settings


def test_each_process_has_a_port_of_its_own_on_every_interface() -> None:
    switch = settings(port=("packet:eth1", "veth:eth2"), shards="3")
    for shard, steering in enumerate(ALL):
        links = links_of(switch, shard)
        assert [link.name for link in links] == ["packet:eth1", "veth:eth2"]
        assert [link.config.steering for link in links if isinstance(link, PacketLink)] == [steering] * 2
    (alone,) = links_of(settings(port=("packet:eth1",)))
    assert isinstance(alone, PacketLink)
    assert alone.config.steering is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, r"shards \(flag --shards\): have rings of hosts at network interfaces; give them: --port"),
        ({"port": ("packet:eth1",), "shards": "64"}, "shards"),
    ],
)
def test_shards_that_cannot_be_are_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings(**{"shards": "2"} | fields)


@pytest.mark.parametrize("port", ["xdp:eth1", "tap:tap0"])
def test_ports_that_cannot_tell_rings_apart_are_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=f"shards: need ports of packet or veth; {port} cannot"):
        links_of(settings(port=(port,), shards="2"))
