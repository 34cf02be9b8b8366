"""One bad packet in a clean capture: what a faulty endpoint or accelerator would do, rule by rule.

A damage takes what passed a switch and returns it with one thing wrong, and the index of the frame that is.
Frames are sealed again, unless the checksum itself is what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from inaproto.wire import icrc
from inaproto.wire.files.pcapng import Direction
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.packet import Packet, decode_packet
from inaproto.wire.roce import Opcode
from tests.inspect.captures import Passed

Capture = list[Passed]
Damage = Callable[[Capture], tuple[Capture, int]]
FIRST, MIDDLE, ACK = Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_MIDDLE, Opcode.RC_ACK
IN, OUT = Direction.INBOUND, Direction.OUTBOUND
SENDER = bytes([10, 0, 0, 2])
"""Rank 1, whose packets are damaged."""


def sealed(data: bytes, *patches: tuple[int, bytes]) -> bytes:
    """With bytes replaced and both checksums right again."""
    frame = bytearray(data)
    for at, value in patches:
        frame[at : at + len(value)] = value
    frame[24:26] = bytes(2)
    frame[24:26] = internet_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    icrc.seal(frame)
    return bytes(frame)


def found(capture: Capture, opcode: int, direction: Direction, source: bytes = SENDER) -> Iterator[int]:
    for index, one in enumerate(capture):
        packet = decode_packet(one.data)
        wanted = (opcode, source, direction)
        if packet is not None and (packet.opcode, packet.src_ip, one.direction) == wanted:
            yield index


def nth(capture: Capture, opcode: int, direction: Direction, n: int, source: bytes = SENDER) -> int:
    return list(found(capture, opcode, direction, source))[n]


def packet_at(capture: Capture, index: int) -> Packet:
    packet = decode_packet(capture[index].data)
    assert packet is not None
    return packet


def put(capture: Capture, index: int, data: bytes) -> tuple[Capture, int]:
    """In place of a frame."""
    return [*capture[:index], replace(capture[index], data=data), *capture[index + 1 :]], index


def insert(capture: Capture, behind: int, data: bytes) -> tuple[Capture, int]:
    return [*capture[: behind + 1], replace(capture[behind], data=data), *capture[behind + 1 :]], behind + 1


def patched(
    opcode: int, direction: Direction, n: int, at: int, value: bytes, source: bytes = SENDER
) -> Damage:
    """Some bytes of one packet are others."""

    def damage(capture: Capture) -> tuple[Capture, int]:
        index = nth(capture, opcode, direction, n, source)
        return put(capture, index, sealed(capture[index].data, (at, value)))

    return damage


def in_header(at: int, value: bytes, n: int = 2) -> Damage:
    """Bytes of the INA header of a first packet."""
    return patched(FIRST, IN, n, 70 + at, value)


def of_the_last_rank(at: int, value: bytes) -> Damage:
    """Bytes of a message's first packet at the rank whose packet comes last: the others agree."""

    def damage(capture: Capture) -> tuple[Capture, int]:
        result = nth(capture, FIRST, OUT, 2)
        ids = slice(70 + 20, 70 + 24)
        index = max(
            at
            for at in range(result)
            if capture[at].direction is IN
            and capture[at].data[42:43] == bytes([FIRST])
            and capture[at].data[ids] == capture[result].data[ids]
        )
        return put(capture, index, sealed(capture[index].data, (at, value)))

    return damage


def unsealed(at: int) -> Damage:
    """A bit flips on the way."""

    def damage(capture: Capture) -> tuple[Capture, int]:
        index = nth(capture, MIDDLE, IN, 3)
        data = bytearray(capture[index].data)
        data[at] ^= 1
        return put(capture, index, bytes(data))

    return damage


def first_with_an_old_message_id(capture: Capture) -> tuple[Capture, int]:
    index = nth(capture, FIRST, IN, 2)
    old = capture[nth(capture, FIRST, IN, 0)].data[70 + 16 : 70 + 24]
    return insert(capture, index, sealed(capture[index].data, (70 + 16, old)))


def old_first_under_a_new_psn(capture: Capture) -> tuple[Capture, int]:
    index = nth(capture, FIRST, IN, 2)
    psn = capture[index].data[51:54]
    return put(capture, index, sealed(capture[nth(capture, FIRST, IN, 0)].data, (51, psn)))


def shifted(capture: Capture, index: int) -> Capture:
    """From a packet on, its sender's PSNs are one too high, and so are results and answers."""
    connection = capture[index].data[26:34]
    back = connection[4:] + connection[:4]
    late = []
    for one in capture[index:]:
        packet = decode_packet(one.data)
        wrong = packet is not None and (
            one.data[26:34] == connection
            if packet.opcode != ACK
            else one.data[26:34] == back and _is_behind(packet, packet_at(capture, index))
        )
        if packet is not None and wrong:
            psn = ((packet.psn + 1) & 0xFF_FFFF).to_bytes(3, "big")
            one = replace(one, data=sealed(one.data, (51, psn)))
        late.append(one)
    return [*capture[:index], *late]


def _is_behind(packet: Packet, other: Packet) -> bool:
    return (packet.psn - other.psn) & 0xFF_FFFF < 1 << 23


def gap_between_messages(capture: Capture) -> tuple[Capture, int]:
    index = nth(capture, FIRST, IN, 2)
    return shifted(capture, index), index


def gap_inside_a_message(capture: Capture) -> tuple[Capture, int]:
    """Captured on its way to the switch alone: only the message's end can show it."""
    capture = [one for one in capture if one.direction is IN and one.data[26:30] == SENDER]
    index = nth(capture, MIDDLE, IN, 4)
    return shifted(capture, index), index


def second_connection_of_a_rank(capture: Capture) -> tuple[Capture, int]:
    index = nth(capture, FIRST, IN, 2)
    return insert(capture, index, sealed(capture[index].data, (47, bytes([0, 0x77, 0x77]))))


def sent_again_with_other_bytes(capture: Capture) -> tuple[Capture, int]:
    index = [at for at in found(capture, MIDDLE, IN) if _has_no_result_yet(capture, at)][-1]
    return insert(capture, index, sealed(capture[index].data, (60, b"\xaa\x55")))


def _has_no_result_yet(capture: Capture, index: int) -> bool:
    """The packet is not the last of its slot to come: the frame behind it is no result."""
    return capture[index + 1].direction is IN


def result_before_the_last_rank(capture: Capture) -> tuple[Capture, int]:
    """One result, moved before the input that came last."""
    result = nth(capture, MIDDLE, OUT, 4)
    last_input = max(
        index
        for index in range(result)
        if capture[index].direction is IN and capture[index].data[42:43] == bytes([MIDDLE])
    )
    moved = capture[result]
    rest = [*capture[:result], *capture[result + 1 :]]
    return [*rest[:last_input], moved, *rest[last_input:]], last_input


def wrong_sum(capture: Capture) -> tuple[Capture, int]:
    index = nth(capture, MIDDLE, OUT, 4)
    data = capture[index].data
    return put(capture, index, sealed(data, (54 + 8, bytes([data[62] ^ 1]))))


def results_in_a_wrong_order(capture: Capture) -> tuple[Capture, int]:
    """A result leaves behind the next one of its connection, which is then the one that came too soon."""
    data = [
        index
        for index, one in enumerate(capture)
        if one.direction is OUT and one.data[26:30] == SENDER and FIRST <= one.data[42] < ACK
    ]
    early, late = data[4], data[5]
    moved = capture[early]
    rest = [*capture[:early], *capture[early + 1 :]]
    return [*rest[:late], moved, *rest[late:]], late - 1


def answer(n: int, **changes: int) -> Damage:
    """One acknowledgement says something else: ``psn`` and ``msn`` are added, ``syndrome`` is set."""

    def damage(capture: Capture) -> tuple[Capture, int]:
        target = packet_at(capture, nth(capture, FIRST, IN, 0)).dst_ip
        index = nth(capture, ACK, IN, n, target)
        packet = packet_at(capture, index)
        syndrome, msn = packet.data[54], int.from_bytes(packet.data[55:58], "big")
        psn = (packet.psn + changes.get("psn", 0)) & 0xFF_FFFF
        aeth = bytes([changes.get("syndrome", syndrome)])
        aeth += ((msn + changes.get("msn", 0)) & 0xFF_FFFF).to_bytes(3, "big")
        return put(capture, index, sealed(packet.data, (51, psn.to_bytes(3, "big")), (54, aeth)))

    return damage


assert INA_HEADER_BYTES == 40
RESULT = patched(FIRST, OUT, 2, 70 + 7, b"\x00")

DAMAGES: dict[str, tuple[str, Damage]] = {
    "a bit flips in a payload": ("ICRC", unsealed(80)),
    "a bit flips in the ICRC": ("ICRC", unsealed(-1)),
    "a bit flips in the IP checksum": ("IP checksum", unsealed(24)),
    "a UDP length that does not fit": ("malformed frame", patched(MIDDLE, IN, 3, 38, b"\x00\x20")),
    "a BTH of version 1": ("malformed frame", patched(MIDDLE, IN, 3, 43, b"\x01")),
    "a first packet with an old message id": ("stale first packet", first_with_an_old_message_id),
    "an old first packet under a new PSN": ("stale first packet", old_first_under_a_new_psn),
    "a PSN left out between messages": ("PSN gap", gap_between_messages),
    "a PSN left out inside a message": ("PSN gap", gap_inside_a_message),
    "another key": ("wrong key", in_header(32, b"\x00\x01\x02\x03\x04\x05\x06\x07")),
    "another rank": ("overlapping rank", in_header(24, b"\x00\x02")),
    "a second connection of a rank": ("overlapping rank", second_connection_of_a_rank),
    "another ring": ("wrong ring", in_header(8, b"\x00\x00\x77\x77")),
    "another epoch": ("wrong ring", in_header(12, b"\x00\x00\x77\x77")),
    "another ring size": ("wrong ring", in_header(26, b"\x00\x09")),
    "another element type": ("ranks disagree", of_the_last_rank(70 + 5, b"\x01")),
    "another operation": ("ranks disagree", of_the_last_rank(70 + 16, b"\x00\x00\x77\x77")),
    "an INA header of version 2": ("INA header", in_header(4, b"\x02")),
    "another message length": ("message length", in_header(28, b"\x00\x09")),
    "another DMA length": ("message length", patched(FIRST, IN, 2, 66, b"\x00\x00\x00\x09")),
    "another rkey": ("wrong rkey", patched(FIRST, IN, 2, 62, b"\xde\xad\xbe\xef")),
    "LAST in the middle of a message": ("opcode order", patched(MIDDLE, IN, 2, 42, b"\x08")),
    "sent again with other bytes": ("retransmission differs", sent_again_with_other_bytes),
    "a result before the last rank's packet": ("result too early", result_before_the_last_rank),
    "one bit of a sum": ("wrong sum", wrong_sum),
    "results in a wrong order": ("result order", results_in_a_wrong_order),
    "a result to another queue pair": (
        "result on a wrong connection",
        patched(MIDDLE, OUT, 3, 47, b"\x00\x77\x77"),
    ),
    "a result not marked as one": ("raw payload for a result", RESULT),
    "an ACK of what was not sent": ("ACK beyond what was sent", answer(2, psn=40)),
    "an ACK with an older message count": ("MSN goes back", answer(2, msn=-2)),
    "a NAK of what came": ("NAK of what was not missing", answer(-1, syndrome=0x60)),
    "a fatal NAK": ("request refused", answer(2, syndrome=0x62)),
}
