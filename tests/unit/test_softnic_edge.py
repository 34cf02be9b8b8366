"""A NIC with an IPv6 address, in a VLAN: what it answers, what it takes, and what it leaves to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inaproto.core.rdma.counters import NicCounters
from inaproto.core.rdma.edge import Edge
from inaproto.core.rdma.neighbours import neighbour_advertisements, neighbour_solicitation
from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.core.rdma.reliable_connection import TIMEOUT_UNIT_NS
from inaproto.core.rdma.verbs import QpAddress, QpAttributes, Segment
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.units import Frames, Instant
from inaproto.wire.outer import dress, short_ip
from inaproto.wire.pause import pause_frame
from inaproto.wire.vlan import with_tag

T0 = Instant(0)
TIMER = TIMEOUT_UNIT_NS << 14
MACS = b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2"
SIX = tuple(bytes.fromhex("fd00") + bytes(13) + bytes([host]) for host in (1, 2, 3))
FOUR = b"\x0a\0\0\1", b"\x0a\0\0\2"


def engines(left: dict[str, Any], right: dict[str, Any], ips: tuple[bytes, ...]) -> list[SoftNicEngine]:
    return [
        SoftNicEngine(SoftNicConfig(mac=mac, ip=ip, **more))
        for mac, ip, more in zip(MACS, ips, (left, right), strict=False)
    ]


def written(left: SoftNicEngine, right: SoftNicEngine) -> tuple[list[Frames], bytearray]:
    """What leaves of a connection's first write, and where it goes."""
    source, target = bytearray(b"gradient" * 8), bytearray(64)
    one, other = left.create_qp(psn=1), right.create_qp(psn=2)
    left.connect_qp(one.qpn, other, QpAttributes())
    right.connect_qp(other.qpn, one, QpAttributes())
    memory, there = left.register_memory(memoryview(source)), right.register_memory(memoryview(target))
    right.post_receive(other.qpn, 1)
    segment = Segment(memory.key, memory.va, 64)
    left.post_write_imm(one.qpn, 1, [segment], remote_va=there.va, rkey=there.key, imm=7, now=T0)
    return [frames.copy() for frames in left.take_output()], target


def tag_of(frames: Frames) -> bytes:
    return frames[0, 12:16].tobytes()


@pytest.mark.parametrize("ips", [FOUR, SIX], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(
    ("config", "tag"), [({"vlan": 100, "priority": 3}, b"\x81\0\x60\x64"), ({"priority": 5}, b"\x81\0\xa0\0")]
)
def test_what_is_sent_has_the_tag_and_is_taken(
    config: dict[str, Any], tag: bytes, ips: tuple[bytes, ...]
) -> None:
    left, right = engines(config, config, ips)
    frames, target = written(left, right)
    assert tag_of(frames[0]) == tag
    right.handle_frames(frames, T0)
    assert bytes(target) == b"gradient" * 8
    answer = right.take_output()
    assert tag_of(answer[0]) == tag
    left.handle_frames(answer, T0)
    assert [one.wr_id for one in left.take_completions()] == [1]


@pytest.mark.parametrize(
    ("theirs", "is_taken"),
    [({}, True), ({"priority": 5}, True), ({"vlan": 100}, False), ({"vlan": 7}, False)],
)
def test_a_nic_without_a_vlan_takes_priority_tags_and_no_vlans(
    theirs: dict[str, Any], is_taken: bool
) -> None:
    left, right = engines(theirs, {}, FOUR)
    frames, target = written(left, right)
    right.handle_frames(frames, T0)
    assert (bytes(target) == b"gradient" * 8) is is_taken
    assert right.statistics()["not_for_us"] == (not is_taken)


@pytest.mark.parametrize("theirs", [{}, {"priority": 5}, {"vlan": 7}])
def test_a_nic_in_a_vlan_takes_its_own_alone(theirs: dict[str, Any]) -> None:
    left, right = engines(theirs, {"vlan": 100}, FOUR)
    frames, target = written(left, right)
    right.handle_frames(frames, T0)
    assert bytes(target) == bytes(64)
    counted = right.statistics()
    assert counted["packets_received"] == 0
    assert counted["not_for_us"] + counted["other_frames"] == 1


def test_an_ipv6_packet_of_no_peer_is_not_taken() -> None:
    left, right = engines({}, {}, SIX)
    frames, target = written(left, right)
    forged = frames[0].copy()
    forged[0, 22:38] = np.frombuffer(SIX[2], np.uint8)
    right.handle_frames([forged], T0)
    forged[0, 22:38], forged[0, 38:54] = frames[0][0, 22:38], np.frombuffer(SIX[2], np.uint8)
    right.handle_frames([forged], T0)
    counted = right.statistics()
    assert (counted["wrong_source"], counted["not_for_us"], bytes(target)) == (1, 1, bytes(64))


@pytest.mark.parametrize("tag", [b"", b"\x81\0\xa0\0"])
def test_a_packet_with_ipv4_options_is_taken(tag: bytes) -> None:
    left, right = engines({}, {}, FOUR)
    frames, target = written(left, right)
    right.handle_frames([dress(block, (tag or bytes(4)) + b"\x46\x94\x04\0\0") for block in frames], T0)
    assert bytes(target) == b"gradient" * 8
    assert right.statistics()["icrc_errors"] == 0


def test_peers_of_another_kind_and_settings_that_cannot_be_are_refused() -> None:
    (left,) = engines({}, {}, SIX[:1])
    mine = left.create_qp(psn=1)
    with pytest.raises(LocalMisuse, match="is no address of a queue pair"):
        left.connect_qp(mine.qpn, QpAddress(MACS[1], FOUR[1], 5, 6), QpAttributes())
    refused: list[dict[str, Any]] = [{"vlan": 4095}, {"priority": 8}, {"vlan": -1}]
    for wrong in refused:
        with pytest.raises(ConfigError, match="vlan must be 0 to 4094 and priority 0 to 7"):
            SoftNicConfig(mac=MACS[0], ip=FOUR[0], **wrong)
    with pytest.raises(ConfigError, match="4 bytes of an IPv4 address or 16 of IPv6"):
        SoftNicConfig(mac=MACS[0], ip=bytes(5))


def test_who_solicits_the_address_in_the_vlan_hears_it() -> None:
    """Scapy asks, and reads the answer."""
    inet6 = pytest.importorskip("scapy.layers.inet6", reason="scapy judges: make venv installs it")
    from scapy.layers.l2 import Dot1Q, Ether

    asks = Ether(src="52:54:00:00:00:02", dst="33:33:ff:00:00:01") / Dot1Q(vlan=100)
    asks /= inet6.IPv6(src="fd00::2", dst="ff02::1:ff00:1", hlim=255) / inet6.ICMPv6ND_NS(tgt="fd00::1")
    asks /= inet6.ICMPv6NDOptSrcLLAddr(lladdr="52:54:00:00:00:02")
    (nic,) = engines({"vlan": 100}, {}, SIX[:1])
    nic.handle_frames([np.frombuffer(bytes(asks), np.uint8)[None]], T0)
    (answer,) = nic.take_output()
    found = Ether(answer[0].tobytes())
    said = found[inet6.ICMPv6ND_NA]
    assert (found[Dot1Q].vlan, found.dst, found[inet6.IPv6].dst) == (100, "52:54:00:00:00:02", "fd00::2")
    assert (said.tgt, said.S, said.O, said[inet6.ICMPv6NDOptDstLLAddr].lladdr) == (
        "fd00::1",
        1,
        1,
        "52:54:00:00:00:01",
    )
    assert (said.type, said.code) == (136, 0)
    checksum = said.cksum
    del said.cksum
    assert Ether(bytes(found))[inet6.ICMPv6ND_NA].cksum == checksum
    assert nic.statistics()["arp_replies"] == 1


def test_only_neighbours_are_answered() -> None:
    question = neighbour_solicitation(mac=MACS[1], ip=SIX[1], asked=SIX[0])
    answers = list(neighbour_advertisements(question, mac=MACS[0], ip=SIX[0]))
    assert [(a[0, :6].tobytes(), a[0, 38:54].tobytes()) for a in answers] == [(MACS[1], SIX[1])]
    for at, value in ((21, 64), (20, 17), (54, 136), (77, 9), (12, 8)):
        other = question.copy()
        other[0, at] = value
        assert list(neighbour_advertisements(other, mac=MACS[0], ip=SIX[0])) == []
        both = np.concatenate([other, question])
        assert len(list(neighbour_advertisements(both, mac=MACS[0], ip=SIX[0]))) == 1
    check = question.copy()
    check[0, 22:38] = 0
    (answer,) = neighbour_advertisements(check[:, :78], mac=MACS[0], ip=SIX[0])
    assert answer[0, :6].tobytes() == b"\x33\x33\0\0\0\1"
    assert list(neighbour_advertisements(question[:, :70], mac=MACS[0], ip=SIX[0])) == []


def plain(kind: bytes) -> Frames:
    """A frame of that type, from a station whose last byte is no 0."""
    return np.frombuffer((MACS[0] + MACS[1] + kind + b"\x45").ljust(60, b"\0"), np.uint8)[None]


def test_an_address_of_ipv6_is_asked_for_by_neighbour_discovery() -> None:
    edge = Edge(mac=MACS[0], ip=SIX[0])
    asked = neighbour_solicitation(mac=MACS[0], ip=SIX[0], asked=SIX[1])
    assert edge.question(SIX[1]).tobytes() == asked.tobytes()


def test_an_ipv6_address_must_be_in_full_that_of_a_peer() -> None:
    left, right = engines({}, {}, SIX)
    frames, _ = written(left, right)
    edge, counters = Edge(mac=MACS[1], ip=SIX[1]), NicCounters()
    for peer, taken in ((SIX[2], 0), (SIX[0], 1)):
        edge.connect(peer)
        assert len(edge.inward([*frames, *frames], counters)) == 2 * taken
    assert counters.wrong_source == 2
    other = Edge(mac=MACS[1], ip=SIX[2])
    assert other.inward([*frames, plain(b"\x08\x06"), *frames], counters)
    assert counters.not_for_us == 2


def test_a_nic_with_an_ipv6_address_leaves_ipv4_out() -> None:
    edge, counters = Edge(mac=MACS[0], ip=SIX[0]), NicCounters()
    others = [plain(b"\x08\x06"), plain(b"\x88\x00"), plain(b"\x00\x00")]
    four = plain(b"\x08\x00")
    mixed = np.concatenate([four, *others, four])
    found = edge.inward([mixed, four, others[0][:, :14]], counters)
    assert [row.tobytes() for part in found for row in part] == [
        frames[0].tobytes() for frames in (*others, others[0][:, :14])
    ]
    assert counters.not_for_us == 3
    assert edge.inward([four], counters) == []


def test_a_nic_without_a_vlan_takes_what_has_none_beside_frames_of_vlans() -> None:
    edge, counters = Edge(mac=MACS[0], ip=FOUR[0]), NicCounters()
    assert not edge.changes_all
    arp = plain(b"\x08\x06")
    rows = [
        np.pad(plain(b"\x08\x00"), ((0, 0), (0, 4))),
        with_tag(arp, b"\x81\0\x60\0"),
        with_tag(arp, b"\x81\0\0\5"),
        with_tag(arp, b"\x81\0\1\0"),
        with_tag(arp, b"\x81\x37\0\5"),
    ]
    found = edge.inward([np.concatenate(rows)], counters)
    assert [part.tobytes() for part in found] == [
        arp.tobytes(),
        np.concatenate([rows[0], rows[4]]).tobytes(),
    ]
    assert counters.other_frames == 2


def test_all_bits_of_a_vlan_count() -> None:
    edge, counters = Edge(mac=MACS[0], ip=FOUR[0], vlan=0x105), NicCounters()
    arp = plain(b"\x08\x06")
    blocks = [with_tag(arp, b"\x81\0" + vlan.to_bytes(2, "big")) for vlan in (5, 0x105, 0x205)]
    assert [part.tobytes() for part in edge.inward(blocks, counters)] == [arp.tobytes()]


def test_what_is_for_no_peer_has_the_tag_alone() -> None:
    edge = Edge(mac=MACS[0], ip=FOUR[0], priority=3)
    for kind in (b"\x08\x00", b"\x08\x06"):
        (found,) = edge.outward([plain(kind)])
        assert found.tobytes() == with_tag(plain(kind), b"\x81\0\x60\0").tobytes()
    edge = Edge(mac=MACS[0], ip=SIX[0])
    edge.connect(SIX[1])
    looks_alike = plain(b"\x08\x06").copy()
    looks_alike[0, 30:34] = np.frombuffer(short_ip(SIX[1]), np.uint8)
    (found,) = edge.outward([looks_alike])
    assert found.tobytes() == looks_alike.tobytes()


def test_frames_of_other_vlans_and_short_ones_are_counted() -> None:
    edge, counters = Edge(mac=MACS[0], ip=FOUR[0], vlan=100), NicCounters()
    arp = np.zeros((2, 60), np.uint8)
    arp[:, 12:14] = 8, 6
    mixed = with_tag(arp, b"\x81\0\0\x64")
    mixed[1, 15] = 0x65
    assert [part.tobytes() for part in edge.inward([mixed, arp, arp[:, :14]], counters)] == [
        arp[:1].tobytes()
    ]
    assert counters.other_frames == 5


def pause(quanta: int, *priorities: int) -> Frames:
    """A frame of priority-based flow control, or for no priority one that pauses all."""
    if priorities:
        enabled = sum(1 << priority for priority in priorities)
        body = b"\x01\x01" + enabled.to_bytes(2, "big") + quanta.to_bytes(2, "big") * 8
    else:
        body = b"\x00\x01" + quanta.to_bytes(2, "big")
    frame = bytes.fromhex("0180c2000001") + MACS[1] + b"\x88\x08" + body
    return np.frombuffer(frame.ljust(60, b"\0"), np.uint8)[None]


@pytest.mark.parametrize(
    ("config", "asked", "is_silent"),
    [
        ({}, pause(100), True),
        ({}, pause(100, 0), True),
        ({}, pause(100, 3), False),
        ({"priority": 3}, pause(100, 1, 3), True),
        ({"vlan": 100, "priority": 3}, pause(100, 3), True),
        ({"vlan": 100, "priority": 3}, pause(100), True),
        ({"priority": 3}, pause(100, 0, 4), False),
        ({"priority": 3}, pause(0, 3), False),
    ],
)
def test_a_paused_link_is_silent_for_as_long_as_was_said(
    config: dict[str, Any], asked: Frames, is_silent: bool
) -> None:
    left, right = engines(config, config, FOUR)
    left.handle_frames([asked], T0)
    frames, target = written(left, right)
    assert (frames == []) is is_silent
    over = Instant(5120)
    assert (left.deadline == over) is is_silent
    left.handle_timer(Instant(over - 1))
    assert not is_silent or left.take_output() == []
    left.handle_timer(over)
    right.handle_frames([*frames, *(block.copy() for block in left.take_output())], over)
    assert bytes(target) == b"gradient" * 8


def test_who_paused_a_link_may_end_that_sooner() -> None:
    left, right = engines({}, {}, FOUR)
    left.handle_frames([pause(0xFFFF), pause(0)], T0)
    frames, target = written(left, right)
    right.handle_frames(frames, T0)
    assert bytes(target) == b"gradient" * 8
    assert left.statistics()["pauses"] == 2


def test_no_timer_of_a_connection_runs_while_its_link_is_paused() -> None:
    left, right = engines({}, {}, FOUR)
    left.handle_frames([pause(0xFFFF)], T0)
    frames, target = written(left, right)
    assert frames == []
    now = T0
    for _ in range(100):  # longer than the timer
        now = Instant(now + 2_000_000)
        left.handle_timer(now)
        left.handle_frames([pause(0xFFFF)], now)
    assert left.statistics()["timeouts"] == 0
    left.handle_frames([pause(0)], now)
    right.handle_frames([block.copy() for block in left.take_output()], now)
    assert bytes(target) == b"gradient" * 8
    assert left.deadline == now + TIMER
    left.handle_timer(Instant(now + TIMER))
    assert left.statistics()["timeouts"] == 1


def test_what_comes_beside_a_pause_is_taken() -> None:
    left, _ = engines({}, {}, FOUR)
    question = np.pad(Edge(mac=MACS[1], ip=FOUR[1]).question(FOUR[0]), ((0, 0), (0, 18)))[:, :60]
    asked = pause(100)
    left.handle_frames([np.concatenate([asked, question, asked])], T0)
    assert left.take_output() == []
    left.handle_timer(Instant(5120))
    (reply,) = left.take_output()
    assert reply[0, :6].tobytes() == MACS[1]
    counters = left.statistics()
    assert (counters["pauses"], counters["other_frames"], counters["arp_replies"]) == (2, 1, 1)


@pytest.mark.parametrize("priorities", [(), (3,), (0, 7)])
def test_a_pause_frame_is_as_the_standard_has_it(priorities: tuple[int, ...]) -> None:
    assert pause_frame(MACS[1], 512, priorities).tobytes() == pause(10, *priorities).tobytes()
