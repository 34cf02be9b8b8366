"""Who may speak on a ring's connection, and in what form: everything else is dropped, never bridged raw.

A receiver takes whatever arrives on its connection for a result. So nothing reaches it there but
results: not a packet from elsewhere, not a form of frame that the accelerator does not read.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inaproto.core.switch.accelerator import FramesArrived, PortDown, PortUp
from inaproto.errors import Blame
from inaproto.units import Instant, PortId
from inaproto.wire import icrc
from inaproto.wire.connection import is_plainly_other, lenient_connection
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET
from tests.accelerators import ADDRESSES, EACH_ACCELERATOR, software_only
from tests.unit.switched_ring import SwitchedRing, block, by_port, emitted, mac, nameless, others, ring_of

pytestmark = EACH_ACCELERATOR

IP = 14
BTH = 42


def vlan(frame: bytes) -> bytes:
    return frame[:12] + b"\x81\x00\x00\x05" + frame[12:]


def double_vlan(frame: bytes) -> bytes:
    return frame[:12] + b"\x88\xa8\x00\x05\x81\x00\x00\x06" + frame[12:]


def ip_options(frame: bytes) -> bytes:
    return frame[:IP] + b"\x46" + frame[IP + 1 : 34] + b"\x01\x01\x01\x00" + frame[34:]


def first_fragment(frame: bytes) -> bytes:
    return frame[:20] + b"\x20\x00" + frame[22:]


def udp_length(frame: bytes) -> bytes:
    return frame[:38] + b"\x00\x40" + frame[40:]


def ip_length(frame: bytes) -> bytes:
    return frame[:16] + b"\x7f\xff" + frame[18:]


def opcode(number: int) -> Callable[[bytes], bytes]:
    def change(frame: bytes) -> bytes:
        changed = bytearray(frame)
        changed[BTH] = number
        icrc.seal(changed)
        return bytes(changed)

    return change


FORMS = [
    vlan,
    double_vlan,
    ip_options,
    first_fragment,
    udp_length,
    ip_length,
    opcode(0x0C),
    opcode(0x17),
    opcode(0x27),
    opcode(0x04),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_no_form_of_packet_passes_raw_on_a_ring_s_connection(
    form: Callable[[bytes], bytes], offset: int
) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0, 0)
    assert emitted(ring.arrive(0, form(ring.packet(0, 0, offset)))) == []
    ring.finish(0)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_forms_pass_between_other_queue_pairs(form: Callable[[bytes], bytes]) -> None:
    ring = SwitchedRing(2)
    frame = form(ring.packet(0, 0, 1, dest_qp=0x999))
    assert emitted(ring.arrive(0, frame)) == [(1, frame)]


def test_a_lenient_receiver_s_view_of_a_frame() -> None:
    ring = SwitchedRing(2)
    frame = ring.packet(0, 0, 1)
    plain = lenient_connection(frame)
    assert plain is not None
    assert lenient_connection(vlan(frame)) == plain
    assert lenient_connection(ip_options(frame)) == plain
    assert lenient_connection(frame[:20] + b"\x20\x10" + frame[22:]) is None, "no header in a later fragment"
    for end in range(len(frame)):
        lenient_connection(frame[:end])


# -- packets without the key


def test_a_stranger_at_another_port_cannot_replace_a_gradient() -> None:
    """The key is in first packets only; ICRC, addresses and PSN are there for all to see."""
    ring = SwitchedRing(2, extra_ports=1)
    ring.send(0, 0)
    ring.send(1, 0, 0)
    actions = ring.arrive(2, ring.packet(1, 0, 1, payload=bytes(64)))
    assert emitted(actions) == []
    (blame,) = others(actions)
    assert isinstance(blame, Blame)
    assert blame.rule == "not from where its rank is"
    sent = by_port(ring.send(1, 0, 1, 2, 3))
    assert sent[1][-3:] == ring.results(0, 1, 2, 3)[1]


@pytest.mark.parametrize("rows", [1, 2])
def test_another_source_address_at_the_same_port_is_a_stranger_too(rows: int) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    ring.send(1, 0, 0)
    forged = []
    for offset in (1, 2)[:rows]:
        frame = ring.packet(1, 0, offset, payload=bytes(64))
        forged.append(frame[:6] + mac(9) + frame[12:])
    assert emitted(ring.arrive_blocks(1, block(*forged))) == []
    assert by_port(ring.send(1, 0, 1, 2, 3))[1][-3:] == ring.results(0, 1, 2, 3)[1]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("knows_addresses", [True, False])
@pytest.mark.parametrize("strange", [[mac(9)], [mac(9), mac(8)], [mac(9), mac(8), mac(9), mac(0)]])
def test_damaged_source_addresses_on_first_packets_do_not_shut_out_their_rank(
    strange: list[bytes], knows_addresses: bool, rows: int
) -> None:
    """The ICRC does not cover them, and go-back-N sends no first packet again that is acknowledged."""
    flows = ring_of(2).flows if knows_addresses else nameless(ring_of(2))
    ring = SwitchedRing(2, flows=flows)
    ring.finish(0)
    ring.send(0, 1)
    first = ring.packet(1, 1, 0)
    for address in strange:
        ring.arrive(1, first[:6] + address + first[12:])
    rest = [ring.packet(1, 1, offset) for offset in (1, 2)]
    blocks = [block(*rest)] if rows == 2 else [block(frame) for frame in rest]
    assert by_port(ring.arrive_blocks(1, *blocks))[1] == ring.results(1, 1, 2)[1]


@software_only(ADDRESSES)
@pytest.mark.parametrize("strange", [mac(9), mac(0)])
def test_no_packet_of_a_ring_teaches_the_bridge_an_address(strange: bytes) -> None:
    """One bit away may be the address of another host."""
    ring = SwitchedRing(2, extra_ports=1)
    ring.finish(0)
    before = ring.accelerator.addresses
    for frame in ring.message(1, 1):
        for _ in range(4):
            ring.arrive(1, frame[:6] + strange + frame[12:])
    assert ring.accelerator.addresses == before


@pytest.mark.parametrize("rows", [1, 2])
def test_first_packets_that_count_for_their_key_alone_are_counted(rows: int) -> None:
    ring = SwitchedRing(2)
    ring.finish(0)
    for number, (serial, strange) in enumerate(((1, mac(9)), (2, mac(8)))):
        first, *rest = ring.message(1, serial)
        ring.arrive_blocks(1, block(*[first[:6] + strange + first[12:]] * rows))
        assert ring.accelerator.view().counters.strange_addresses == rows * (number + 1)
        ring.arrive_blocks(1, block(rest[0][:6] + mac(7) + rest[0][12:]), *(block(frame) for frame in rest))
        ring.send(0, serial)
        assert ring.accelerator.view().counters.strange_addresses == rows * (number + 1)
    assert ring.accelerator.view().counters.dropped == {"not from where its rank is": 2}


@software_only(ADDRESSES)
@pytest.mark.parametrize("copies", [1, 2])
def test_a_ring_s_packets_say_which_ip_address_their_host_has(copies: int) -> None:
    """So a damaged address on an ACK of that host, whose ICRC no switch looks at, is not learnt."""
    ring = SwitchedRing(2)
    ring.arrive_blocks(1, block(*[ring.packet(1, 0, 0)] * copies))
    before = ring.accelerator.addresses
    ack = ring.ack(0)
    ring.arrive(1, ack[:6] + mac(9) + ack[12:])
    assert ring.accelerator.addresses == before


@software_only(ADDRESSES)
def test_nobody_moves_an_address_with_packets_that_are_refused() -> None:
    ring = SwitchedRing(2, extra_ports=1)
    ring.finish(0)
    before = ring.accelerator.addresses
    for _ in range(4):
        ring.arrive(2, *ring.message(1, 0)[1:])
    assert ring.accelerator.addresses == before


def test_a_stranger_cannot_fault_the_ring() -> None:
    ring = SwitchedRing(2, extra_ports=1)
    ring.send(0, 0)
    ring.send(1, 0, 0)
    actions = ring.arrive(2, ring.packet(1, 0, 1, payload=bytes(60)))
    assert [type(action) for action in actions] == [Blame]
    assert by_port(ring.send(1, 0, 1, 2, 3))[1][-3:] == ring.results(0, 1, 2, 3)[1]


def test_a_rank_whose_port_went_down_may_go_on_elsewhere_in_mid_message() -> None:
    ring = SwitchedRing(2, extra_ports=1)
    ring.send(0, 0)
    ring.send(1, 0, 0)
    ring.accelerator.step(PortDown(PortId(1)), Instant(0))
    frames = [ring.packet(1, 0, offset) for offset in (1, 2, 3)]
    sent = emitted(ring.arrive(2, *frames))
    assert len(sent) == 6
    ring.accelerator.step(PortUp(PortId(1)), Instant(0))


@pytest.mark.parametrize("rows", [1, 2])
def test_where_no_address_is_known_the_port_alone_says_where_the_rank_is(rows: int) -> None:
    ring = SwitchedRing(2, extra_ports=1, flows=nameless(ring_of(2)))
    ring.finish(0)
    ring.send(0, 1)
    moved = [frame[:6] + mac(9) + frame[12:] for frame in ring.message(1, 1)]
    ring.arrive(1, moved[0])
    middles = [block(*moved[1:3])] if rows == 2 else [block(frame) for frame in moved[1:3]]
    assert emitted(ring.arrive_blocks(2, *middles)) == []
    assert len(emitted(ring.arrive_blocks(1, *middles))) == 4


def test_a_packet_of_a_ring_behind_a_damaged_ethernet_type_passes_nowhere() -> None:
    """Damaged alike on the next link it would be right again, and raw: the type is in no ICRC."""
    ring = SwitchedRing(2)
    ring.send(0, 0, 0)
    frame = ring.packet(0, 0, 1)
    other = frame[:12] + b"\x09\x00" + frame[14:]
    assert emitted(ring.arrive(0, other)) == []
    assert ring.accelerator.view().counters.dropped == {"malformed packet of a ring": 1}
    stranger = ring.packet(0, 0, 1, dest_qp=0x999)
    passing = stranger[:12] + b"\x09\x00" + stranger[14:]
    assert emitted(ring.arrive(0, passing)) == [(1, passing)]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_plainly_something_else_is_no_ring_s(form: Callable[[bytes], bytes]) -> None:
    """The quick answer for ordinary traffic never says so of a frame that a lenient stack would take."""
    frame = form(SwitchedRing(2).packet(0, 0, 1))
    assert not is_plainly_other(frame)
    tcp = frame[:23] + b"\x06" + frame[24:]
    if frame[12:15] == b"\x08\x00\x45":
        assert is_plainly_other(tcp)
        assert lenient_connection(tcp) is None


def test_a_first_packet_with_the_key_says_where_the_rank_is_now() -> None:
    ring = SwitchedRing(2, extra_ports=1)
    ring.finish(0)
    ring.send(0, 1)
    assert len(emitted(ring.arrive(2, *ring.message(1, 1)))) == 8


# -- results are marked


def test_results_are_marked_and_a_result_is_no_input() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    first = by_port(ring.send(1, 0))[1][0]
    assert first[70 + FLAGS_OFFSET] & FLAG_RESULT
    actions = ring.accelerator.step(FramesArrived(PortId(0), [block(first)]), Instant(0))
    assert [action.rule for action in actions if isinstance(action, Blame)] == ["no INA header"]
    assert emitted(actions) == []
