"""The switch as a box between two machines: what their kernels send passes as over a cable.

Offloads are on at the machines, as they are by default: long segments and missing checksums are the rule
here.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

from inaproto.wire.roce import Bth, Opcode, RocePacket
from tests.clusters.machines import Bench, bench, received_frame
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.namespaces import Namespace, require_namespaces, require_xdp

TRANSFER_BYTES = 8 << 20


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


@pytest.fixture(params=["packet", "veth", "xdp"])
def adapter(request: pytest.FixtureRequest) -> str:
    """Of the switch's ports."""
    if request.param == "xdp":
        require_xdp()
    return str(request.param)


def open_socket(where: Namespace, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    with where.entered():
        sock = socket.socket(socket.AF_INET, kind, protocol)
    sock.settimeout(DEADLINE_S)
    return sock


def ping(found: Bench) -> None:
    """ARP and ICMP: raises ``TimeoutError`` without an answer."""
    with open_socket(found.hosts[0], socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        for size in (8, 57, 1400):
            words = struct.pack(">BBHHH", 8, 0, 0, 7, size) + os.urandom(size)
            total = sum(struct.unpack(f">{len(words) // 2}H", words[: len(words) & ~1]))
            total += words[-1] << 8 if len(words) & 1 else 0
            total = (total & 0xFFFF) + (total >> 16)
            check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
            sock.sendto(words[:2] + struct.pack(">H", check) + words[4:], (found.ips[1], 0))
            while True:
                answer = sock.recv(2048)[20:]
                if answer[0] == 0:
                    break
            assert answer[4:] == words[4:]


def transfer(found: Bench, data: bytes) -> None:
    """TCP, both ways at once."""
    with open_socket(found.hosts[1], socket.SOCK_STREAM) as listener:
        listener.bind((found.ips[1], 5001))
        listener.listen()
        left = open_socket(found.hosts[0], socket.SOCK_STREAM)
        left.connect((found.ips[1], 5001))
        right, _ = listener.accept()
    right.settimeout(DEADLINE_S)
    with left, right:
        senders = [threading.Thread(target=sock.sendall, args=(data,)) for sock in (left, right)]
        got = [bytearray(), bytearray()]

        def receive(sock: socket.socket, into: bytearray) -> None:
            while len(into) < len(data):
                part = sock.recv(1 << 20)
                if not part:
                    return
                into += part

        receivers = [
            threading.Thread(target=receive, args=pair) for pair in zip((left, right), got, strict=True)
        ]
        for thread in senders + receivers:
            thread.start()
        for thread in senders + receivers:
            thread.join(DEADLINE_S)
        assert bytes(got[0]) == data
        assert bytes(got[1]) == data


def checksum_errors(where: Namespace) -> int:
    """As this machine's kernel counts them: IP, UDP, ICMP."""
    errors = 0
    lines = where.run("cat", "/proc/net/snmp").splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        found = dict(zip(names.split()[1:], values.split()[1:], strict=True))
        errors += int(found.get("InCsumErrors", 0)) + int(found.get("InHdrErrors", 0))
    return errors


def test_kernels_reach_each_other_through_it(runtime_dir: Path, adapter: str) -> None:
    with bench(runtime_dir, adapter=adapter) as found:
        found.start_switch()
        ping(found)
        assert "REACHABLE" in found.hosts[0].ip("neigh", "show", found.ips[1])
        names = [port["name"] for port in found.status()["switch"]["ports"]]
        assert names == [f"{adapter}:sw0", f"{adapter}:sw1"]


@pytest.mark.parametrize(
    ("adapter", "mtu"), [("packet", 1500), ("packet", 9000), ("xdp", 1500)], indirect=["adapter"]
)
def test_tcp_of_several_mebibytes_both_ways_with_offloads(runtime_dir: Path, adapter: str, mtu: int) -> None:
    with bench(runtime_dir, mtu=mtu, adapter=adapter) as found:
        witness = found.raw(found.switch, "sw0", vnet=True)
        found.start_switch()
        transfer(found, np.random.default_rng(1).bytes(TRANSFER_BYTES))
        assert [checksum_errors(host) for host in found.hosts] == [0, 0]
        witness.setblocking(False)
        seen = []
        try:
            while True:
                data = witness.recv(1 << 17)
                seen.append((data[0] & 1, data[1], len(data)))
        except BlockingIOError:
            pass
        assert any(needs for needs, _, _ in seen), "the sender left no checksum to be completed"
        assert max(length for _, kind, length in seen if kind) > 2 * mtu, "the sender cut everything itself"
        assert all(rule == "receive ring full" for rules in found.drops().values() for rule in rules)


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_datagrams_of_every_length(runtime_dir: Path, mtu: int) -> None:
    """With fragments among them; a kernel drops a datagram whose checksum is wrong."""
    with bench(runtime_dir, mtu=mtu) as found:
        found.start_switch()
        with (
            open_socket(found.hosts[0], socket.SOCK_DGRAM) as left,
            open_socket(found.hosts[1], socket.SOCK_DGRAM) as right,
        ):
            right.bind((found.ips[1], 5002))
            for length in (0, 1, 2, 17, 18, 19, 1000, 1471, 1472, 1473, 5000, mtu - 28, mtu - 27):
                data = np.random.default_rng(length).bytes(length)
                left.sendto(data, (found.ips[1], 5002))
                got, sender = right.recvfrom(1 << 16)
                assert got == data
                assert sender[0] == found.ips[0]
        assert [checksum_errors(host) for host in found.hosts] == [0, 0]


def between(found: Bench, frames: list[bytes]) -> list[bytes]:
    """What comes out at host 1 of ``frames`` that host 0 sends as they are."""
    sender, receiver = found.raw(found.hosts[0], "eth0"), found.raw(found.hosts[1], "eth0")
    got: list[bytes] = []
    for frame in frames:
        sender.send(frame)
        while True:
            seen = received_frame(receiver)
            if seen[6:12] == frame[6:12]:  # no ARP of the kernels
                got.append(seen)
                break
    return got


def test_tagged_frames_keep_their_tags(runtime_dir: Path, adapter: str) -> None:
    inner: Any = IP(src="10.7.0.1", dst="10.7.0.2") / UDP(sport=9, dport=9) / (b"tagged" * 9)
    ether = Ether(src="02:00:00:00:07:01", dst="02:00:00:00:07:02")
    frames = [
        bytes(ether / Dot1Q(vlan=5, prio=3) / inner),
        bytes(ether / Dot1Q(vlan=0, prio=7) / inner),
        bytes(ether / Dot1Q(vlan=4095, type=0x8100) / Dot1Q(vlan=17) / inner),
        bytes(
            Ether(src=ether.src, dst=ether.dst, type=0x88A8)
            / Dot1Q(vlan=9, type=0x8100)
            / Dot1Q(vlan=8)
            / inner
        ),
    ]
    with bench(runtime_dir, adapter=adapter) as found:
        found.start_switch()
        assert between(found, frames) == frames


def plain_roce(opcode: Opcode, psn: int, payload: bytes) -> bytes:
    return RocePacket.build(
        src_mac=bytes.fromhex("020000000801"),
        dst_mac=bytes.fromhex("020000000802"),
        src_ip=bytes([10, 8, 0, 1]),
        dst_ip=bytes([10, 8, 0, 2]),
        udp_source_port=0xC123,
        ip_id=psn & 0xFFFF,
        bth=Bth(opcode=opcode, dest_qp=0x1234, psn=psn),
        payload=payload,
    ).encode_frame()


def test_plain_roce_is_not_touched(runtime_dir: Path, adapter: str) -> None:
    """Byte for byte, wrong ICRCs and missing UDP checksums included: it is of no ring."""
    rng = np.random.default_rng(3)
    opcodes = (Opcode.RC_SEND_FIRST, Opcode.RC_SEND_MIDDLE, Opcode.RC_SEND_LAST, Opcode.RC_SEND_ONLY)
    frames = [
        plain_roce(opcodes[psn % 4], psn, rng.bytes(1024 if psn % 4 < 2 else 4 * psn + 4))
        for psn in range(24)
    ]
    frames += [frame[:-1] + bytes([frame[-1] ^ 0xFF]) for frame in frames[:4]]
    assert Ether(frames[0]).haslayer(BTH)
    with bench(runtime_dir, adapter=adapter) as found:
        found.start_switch()
        assert between(found, frames) == frames


def test_what_a_port_cannot_carry_is_counted(runtime_dir: Path) -> None:
    """Links of different MTUs: a long frame ends at the short one, visibly, and nothing else does."""
    with bench(runtime_dir, mtu=9000) as found:
        found.switch.ip("link", "set", "sw1", "mtu", "1500")
        found.start_switch()
        sender = found.raw(found.hosts[0], "eth0")
        sender.send(plain_roce(Opcode.RC_SEND_ONLY, 1, bytes(4096)))
        found.wait(
            lambda status: any(
                port["drops"] == {"longer than the link's MTU": 1} for port in status["ports"]
            ),
            "a drop for its length",
        )
        ping(found)
