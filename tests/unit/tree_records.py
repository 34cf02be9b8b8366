"""What passes between the switches of a tree, held, changed and sent by tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.tree.translation import base_header, packet_header, share_of
from inaproto.errors import Blame
from inaproto.wire.crc import crc32
from inaproto.wire.ina_header import InaHeader
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import NoteKind, TreeNote
from tests.unit.switched_tree import Carried, SwitchedTree, data_of

STEERED = TreeSwitch("S", (TreeSwitch("X", (0, 1), aggregates=False), TreeSwitch("L", (2, 3))))


def rules(tree: SwitchedTree) -> list[tuple[str, str]]:
    """Who was blamed for what: (switch, rule)."""
    return [(name, said.rule) for name, said in tree.said if isinstance(said, Blame)]


def sealed(packet: RocePacket) -> bytes:
    return packet.encode_frame()


def changed_ina(frame: bytes, **changes: Any) -> bytes:
    """A first packet with another INA header."""
    packet = RocePacket.decode_frame(frame)
    header = replace(InaHeader.decode(packet.payload), **changes)
    return sealed(replace(packet, payload=header.encode() + packet.payload[40:]))


def first_up(tree: SwitchedTree, serial: int = 0) -> list[Carried]:
    """L1's sums of a message, taken off the links; with the notes before them gone."""
    for rank in (0, 1):
        tree.send(rank, serial)
    up = data_of(list(tree.under_way))
    tree.under_way.clear()
    return up


def results_for_l1(tree: SwitchedTree) -> list[Carried]:
    """The results of message 0 on their way to L1, taken off the links; all else has arrived."""
    down: list[Carried] = []

    def held(sent: Carried) -> bool:
        if (sent.sender, sent.receiver) == ("S", "L1") and sent.note is None:
            down.append(sent)
            return True
        return False

    tree.finish(0, held)
    assert len(down) == 4
    tree.forget()
    return down


def note_of(tree: SwitchedTree, **changes: Any) -> TreeNote:
    spec = tree.hosts.spec
    known: dict[str, Any] = {"rank": 3, "ring_id": spec.ring_id, "epoch": spec.epoch, "msg_id": 0}
    return TreeNote(**{"kind": NoteKind.GAP, "offset": 1, "key": spec.key, **known, **changes})


def send_note(
    tree: SwitchedTree, receiver: str, sender: str, record: bytes, *, port: int | None = None
) -> None:
    """A record arrives on the virtual connection between two switches."""
    role = tree.specs()[sender].role
    assert role is not None
    links = [*role.children, *([role.parent] if role.parent else [])]
    link = next(link for link in links if link.peer == receiver)
    header = packet_header(base_header(link), Opcode.RC_SEND_ONLY, 0, len(record))
    tail = record + bytes(-len(record) % 4)
    frame = header + tail + (share_of(header, len(tail)) ^ crc32(tail)).to_bytes(4, "little")
    at = tree.ports[receiver][sender] if port is None else port
    tree.arrive(receiver, at, frame)
