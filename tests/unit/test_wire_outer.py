"""RoCEv2 over IPv6, with IPv4 options, in VLANs: turned into plain frames and back. Scapy judges the ICRC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.units import Frames
from inaproto.wire.icrc import seal, verify
from inaproto.wire.outer import addresses_of, dress, in_vlan_of, is_dressed, outer_of, peel, short_ip
from inaproto.wire.roce import RocePacket
from tests.unit.test_wire_connection import FRAME, put

pytest.importorskip("scapy.contrib.roce", reason="scapy judges: make venv installs it")
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

A, B = bytes.fromhex("fd00" + "00" * 13 + "02"), bytes.fromhex("fd00" + "00" * 13 + "01")
TAG = b"\x81\0\x60\x64"
FORMS = ["IPv6", "IPv4 with options", "IPv6 in a VLAN", "options in a VLAN", "VLAN", "plain"]


def network(form: str, *, number: int = 0, tos: int = 0, label: int = 0) -> Packet:
    """Layers of a form up to IP, as scapy makes them."""
    layers = Ether(dst="52:54:00:00:00:01", src="52:54:00:00:00:02")
    if "VLAN" in form:
        layers /= Dot1Q(vlan=100, prio=3)
    if "IPv6" in form:
        return layers / IPv6(src="fd00::2", dst="fd00::1", tc=tos, fl=label, hlim=63)
    options = [IPOption(b"\x94\x04\0\0")] if "options" in form else []
    return layers / IP(
        src="10.0.0.2", dst="10.0.0.1", tos=tos, id=number, flags="DF", ttl=63, options=options
    )


@lru_cache(maxsize=256)
def judged(form: str, *, psn: int = 7, payload: bytes = bytes(range(64)), **changes: int) -> bytes:
    """A packet of a form, with the ICRC that scapy computes."""
    datagram = UDP(sport=0xC000, dport=4791, chksum=0) / BTH(opcode=7, pkey=0xFFFF, dqpn=0xABCDEF, psn=psn)
    return bytes(network(form, **changes) / datagram / Raw(payload))


def block(*frames: bytes) -> Frames:
    return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), -1)


def rows(groups: Sequence[tuple[bytes, Sequence[Frames]]]) -> list[bytes]:
    return [row.tobytes() for outer, parts in groups for part in parts for row in dress(part, outer)]


@pytest.mark.parametrize("tos", [0, 0x6A, 0x6B, 0x9A])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_taken_off_leaves_a_plain_packet_with_the_right_icrc(form: str, tos: int) -> None:
    frames = [judged(form, psn=psn, number=4000 + psn, tos=tos, label=0x12345) for psn in range(3)]
    ((outer, (part,)),) = peel([block(*frames)])
    assert is_dressed(block(frames[0])) == (form != "plain")
    for psn, row in enumerate(part):
        plain = row.tobytes()
        assert verify(plain)
        packet = RocePacket.decode_frame(plain)
        assert (packet.bth.psn, packet.bth.dest_qp, packet.payload) == (psn, 0xABCDEF, bytes(range(64)))
        assert (packet.ip.tos, packet.ip.ttl) == (tos, 63)
        assert packet.ip.src == (short_ip(A) if "IPv6" in form else bytes([10, 0, 0, 2]))
    assert [row.tobytes() for row in dress(part, outer)] == frames


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_packet_stays_damaged(form: str) -> None:
    frame = bytearray(judged(form))
    frame[-9] ^= 4
    ((_, (part,)),) = peel([block(bytes(frame))])
    assert not verify(part[0].tobytes())


@settings(max_examples=30)
@given(st.lists(st.sampled_from([*FORMS, "IPv6 marked", "other"]), max_size=12), st.integers(1, 5))
def test_all_forms_in_any_order_come_back_as_they_were(forms: list[str], together: int) -> None:
    frames = []
    for number, form in enumerate(forms):
        number %= 3
        tos = 3 if "marked" in form else 0
        frames.append(b"\xff" * 140 if form == "other" else judged(form, psn=number, number=number, tos=tos))
    blocks: list[Frames] = []
    for frame in frames:
        if blocks and blocks[-1].shape[1] == len(frame) and len(blocks[-1]) < together:
            blocks[-1] = np.concatenate([blocks[-1], block(frame)])
        else:
            blocks.append(block(frame))
    assert rows(peel(blocks)) == frames


@pytest.mark.parametrize("form", FORMS)
def test_packets_of_several_hosts_in_one_block_keep_their_icrc(form: str) -> None:
    """What the ICRC covers differs from row to row, whatever else they have in common."""
    frames = []
    for host in (2, 3, 4):
        layers = network(form, number=host)
        ip = layers[IPv6] if "IPv6" in form else layers[IP]
        ip.src = f"fd00::{host}" if "IPv6" in form else f"10.0.0.{host}"
        bth = BTH(opcode=7, pkey=0xFFFF, dqpn=host, psn=host)
        frames.append(bytes(layers / UDP(sport=0xC000 + host, dport=4791, chksum=0) / bth / Raw(bytes(64))))
    found = peel([block(*frames)])
    assert [verify(row.tobytes()) for _, parts in found for part in parts for row in part] == [True] * 3
    assert rows(found) == frames


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FORMS), st.dictionaries(st.integers(0, 140), st.integers(0, 255), max_size=3)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_damaged_frames_come_back_as_they_came(damaged: list[tuple[str, dict[int, int]]]) -> None:
    """All but the checksum of an IP header with options, which is made anew: hosts drop such a packet."""
    frames = []
    for form, changes in damaged:
        frame = bytearray(judged(form))
        at = 24 + 4 * ("VLAN" in form)
        for place, value in changes.items():
            if place < len(frame) and not ("options" in form and 14 <= place < at + 14):
                frame[place] = value
        frames.append(bytes(frame))
    longest = max(map(len, frames))
    together = [frame for frame in frames if len(frame) == longest]
    assert rows(peel([block(*together)])) == together
    assert rows(peel([block(frame) for frame in frames])) == frames


@pytest.mark.parametrize("form", FORMS[:-1])
def test_the_shortest_packets_are_taken_off_too(form: str) -> None:
    frame = judged(form, payload=b"")
    ((outer, (part,)),) = peel([block(frame)])
    assert outer
    assert verify(part[0].tobytes())


def port_at(form: str) -> int:
    header = 40 if "IPv6" in form else 24 if "options" in form else 20
    return 14 + 4 * ("VLAN" in form) + header + 2


def protocol_at(form: str) -> int:
    return 14 + 4 * ("VLAN" in form) + (6 if "IPv6" in form else 9)


@pytest.mark.parametrize("place", [port_at, protocol_at])
@pytest.mark.parametrize("form", FORMS[:-1])
def test_in_a_block_each_frame_is_judged_by_itself(form: str, place: Callable[[str], int]) -> None:
    good = judged(form)
    bad = put(place(form), b"\x77", good)
    found = peel([block(good, bad, good)])
    assert [bool(outer) for outer, _ in found] == [True, False, True]
    assert rows(found) == [good, bad, good]


def other_in_vlan() -> bytes:
    return put(15, b"\x65", judged("IPv6 in a VLAN"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (judged("IPv6 in a VLAN"), other_in_vlan()),
        (judged("IPv6"), judged("IPv4 with options", payload=bytes(80))),
        (judged("IPv6"), judged("plain", payload=bytes(84))),
        *((judged("IPv6"), judged("IPv6", label=label)) for label in (0x10000, 0x100, 1)),
    ],
    ids=["VLAN", "options", "plain", "label 0x10000", "label 0x100", "label 1"],
)
def test_what_alternates_in_a_block_is_cut_there(one: bytes, other: bytes) -> None:
    found = peel([block(one, other, one)])
    assert len(found) == 3
    assert [verify(row.tobytes()) for _, parts in found for part in parts for row in part] == [True] * 3
    assert rows(found) == [one, other, one]


@pytest.mark.parametrize("change", [{"src": "11.0.0.2"}, {"flags": 0}, {"dst": "10.0.0.9"}])
def test_what_the_icrc_covers_of_ipv4_with_options_is_not_taken_from_another_row(
    change: dict[str, Any],
) -> None:
    frames = []
    for changes in ({}, change):
        layers = network("IPv4 with options")
        for name, value in changes.items():
            setattr(layers[IP], name, value)
        bth = BTH(opcode=7, pkey=0xFFFF, dqpn=1, psn=1)
        frames.append(bytes(layers / UDP(sport=0xC000, dport=4791, chksum=0) / bth / Raw(bytes(64))))
    found = peel([block(*frames)])
    assert [verify(row.tobytes()) for _, parts in found for part in parts for row in part] == [True] * 2
    assert rows(found) == frames


def test_addresses_of_ipv6_that_differ_in_their_first_byte_are_two() -> None:
    frames = [judged("IPv6"), put(22, b"\xfe", judged("IPv6"))]
    assert [addresses_of(outer) for outer, _ in peel([block(*frames)])] == [(A, B), (b"\xfe" + A[1:], B)]


def test_a_header_of_ipv4_may_be_as_long_as_one_of_ipv6() -> None:
    outer = bytes(4) + b"\x4a" + 5 * b"\x94\x04\0\0"
    ((found, (part,)),) = peel([dress(block(judged("plain")), outer)])
    assert found == outer
    assert verify(part[0].tobytes())


def test_behind_a_vlan_tag_alone_there_may_be_padding() -> None:
    ((outer, (part,)),) = peel([block(judged("VLAN") + bytes(2))])
    assert (outer, part[0, -2:].tobytes()) == (TAG, bytes(2))


def test_blocks_of_one_form_make_one_group() -> None:
    ((_, parts),) = peel([block(judged("IPv6")), block(judged("IPv6", psn=8))])
    assert len(parts) == 2


def test_blocks_without_frames_and_the_shortest_frames_are_left() -> None:
    blocks = [np.zeros((0, 90), np.uint8), block(bytes(12) + b"\x08\0")]
    ((outer, parts),) = peel(blocks)
    assert (outer, [part.shape for part in parts]) == (b"", [(0, 90), (1, 14)])


def test_marks_do_not_make_groups() -> None:
    frames = [judged("IPv6", psn=psn, tos=psn % 4) for psn in range(8)]
    assert [(len(part[0])) for _, part in peel([block(*frames)])] == [8]


def with_extension() -> bytes:
    layers = Ether(dst="52:54:00:00:00:01", src="52:54:00:00:00:02") / IPv6(src="fd00::2", dst="fd00::1")
    return bytes(layers / IPv6ExtHdrDestOpt() / UDP(sport=1, dport=4791) / BTH(opcode=7) / Raw(bytes(64)))


@pytest.mark.parametrize(
    "frame",
    [
        with_extension(),
        put(20, b"\x06", judged("IPv6")),
        put(56, b"\x12\xb6", judged("IPv6")),
        put(19, b"\x01", judged("IPv6")),
        put(58, b"\0\x09", judged("IPv6")),
        judged("IPv6") + b"\0",
        judged("IPv6")[:70],
        judged("IPv4 with options") + b"\0",
        put(20, b"\x20", judged("IPv4 with options")),
        put(23, b"\x06", judged("IPv4 with options")),
        put(12, b"\x88\x08", judged("IPv6")),
        put(12, b"\x88\x08", judged("IPv4 with options")),
        put(18, b"\x55", judged("VLAN")),
        judged("VLAN")[:40],
        put(18, b"\0\x14", put(58, b"\0\x14", judged("IPv6", payload=b"")[:-4])),
    ],
)
def test_frames_that_are_left_as_they_are(frame: bytes) -> None:
    assert not is_dressed(block(frame))
    assert [(outer, [p.tobytes() for p in parts]) for outer, parts in peel([block(frame)])] == [
        (b"", [frame])
    ]


def test_what_is_built_inside_can_be_dressed_for_ipv6() -> None:
    """As a NIC does it: its own packets count their identification."""
    packet = RocePacket.decode_frame(FRAME)
    plain = put(26, short_ip(A) + short_ip(B), FRAME)
    framed = block(*(sealed(put(18, number.to_bytes(2, "big"), plain)) for number in (0, 1, 0x1234)))
    dressed = dress(framed, outer_of(A, B))
    for row in dressed:
        found = Ether(row.tobytes())
        assert (found[IPv6].src, found[IPv6].dst, found[IPv6].plen) == ("fd00::2", "fd00::1", len(FRAME) - 34)
        assert found[BTH].psn == packet.bth.psn
        assert found[BTH].compute_icrc(bytes(found[BTH])[:-4]) == row[-4:].tobytes()


def sealed(frame: bytes) -> bytes:
    data = bytearray(frame)
    seal(data)
    return bytes(data)


def test_what_is_said_to_a_sender_goes_the_other_way() -> None:
    back = sealed(put(26, short_ip(B) + short_ip(A), FRAME))
    found = Ether(dress(block(back), outer_of(A, B))[0].tobytes())
    assert (found[IPv6].src, found[IPv6].dst) == ("fd00::1", "fd00::2")
    there = sealed(put(26, short_ip(A) + short_ip(B), FRAME))
    together = dress(block(there, back), outer_of(A, B))
    assert [row.tobytes() for row in together] == [
        dress(block(frame), outer_of(A, B)).tobytes() for frame in (there, back)
    ]


def test_a_vlan_tag_of_another_outer_part() -> None:
    six = outer_of(A, B)
    assert in_vlan_of(six, b"") == six
    assert in_vlan_of(six, TAG) == outer_of(A, B, tag=TAG)
    assert in_vlan_of(outer_of(A, B, tag=TAG), outer_of(B, A)) == six
    assert in_vlan_of(b"", outer_of(A, B, tag=TAG)) == TAG
    assert in_vlan_of(TAG, six) == in_vlan_of(TAG, b"") == b""
    assert six == bytes(4) + b"\x60\0\0\0" + A + B
    assert addresses_of(six) == (A, B)
    assert addresses_of(TAG) is None
    assert outer_of(bytes(4), bytes(4), tag=TAG) == TAG


def test_addresses_of_one_network_have_different_short_forms() -> None:
    assert short_ip(b"\x0a\0\0\1") == b"\x0a\0\0\1"
    hosts = [A[:12] + (number * 0x9E3779B1 & 0xFFFFFFFF).to_bytes(4, "big") for number in range(10_000)]
    assert len({short_ip(host) for host in hosts}) == len(hosts)
