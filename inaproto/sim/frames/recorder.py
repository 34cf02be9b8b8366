"""What a run says about itself, event by event, for a log that people read and a replay compares.

A world that has no recorder runs the same way, only faster: logs are made by running a failing world
again. One record per event: ``n`` (number), ``at`` (virtual ns), ``node``, ``kind``, ``detail`` (for
frames a checksum of their bytes) and, where there is more to say, ``frames`` (those that arrived), ``sends``
(frames that a link was given until the next event, with their fate) and ``said`` (what parts did until then).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from inaproto.core.host.events import (
    Completed,
    Exchanged,
    HostEvent,
    JobFailed,
    MessageAcknowledged,
    MessageArrived,
    RankCalled,
)
from inaproto.core.host.operations import Filled, Woke
from inaproto.errors import DecodeError
from inaproto.sim.frames.draw.swarm import Fault
from inaproto.sim.kernel.fates import Fate
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES, InaHeader
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import TreeNote

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing

Record = dict[str, Any]
_SOURCE, _TARGET = slice(26, 30), slice(30, 34)
"""IP addresses, in an Ethernet frame."""
_OPCODE_NAMES: Final = {int(opcode): opcode.name.removeprefix("RC_") for opcode in Opcode}


class Recorder:
    """Keeps all records; ``records[i]`` is that of event ``i + 1``, with what followed until the next."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._first: Record = {}
        """What was said before the first event; its record gets it."""
        self._send: Record = {}
        self._switches: dict[bytes, str] = {}
        """Names of switches that send packets of their own, by IP address."""
        self._names: dict[int, str] = {}
        """Names of these switches by node."""
        self._under_way: dict[int, tuple[Frames, Record]] = {}
        """Frames under way by identity; each is kept so that no other gets its identity."""

    def begin(self, switches: Mapping[bytes, str], names: Mapping[int, str]) -> None:
        """Begins with what switches of a world of several are called, by IP address and by node."""
        self._switches, self._names = dict(switches), dict(names)

    def event(self, number: int, at_ns: int, node: int, kind: str, detail: int) -> None:
        record: Record = {"n": number, "at": at_ns, "node": node, "kind": kind, "detail": detail}
        if node in self._names:
            record["name"] = self._names[node]
        record.update(self._first)
        self._first = {}
        self.records.append(record)

    def frames(self, node: int, block: Frames) -> None:
        """Frames of the event that was told last."""
        self.records[-1]["frames"] = [self._describe(row.tobytes()) for row in block]

    def fault(self, fault: Fault, host: str) -> None:
        """Fault of the event that was told last: what struck, and until when."""
        self.records[-1]["fault"] = {
            "kind": str(fault.kind), "target": fault.target, "until": fault.at_ns + fault.duration_ns
        }  # fmt: skip
        self.noted(f"fault: {fault.kind} of {host} for {fault.duration_ns} ns")

    def noted(self, text: str) -> None:
        at = self.records[-1]["at"] if self.records else 0
        self._append("said", {"at": at, "text": text})

    def ring_step(self, ring: HostRing, event: HostEvent) -> None:
        text = say_step(event)
        if not text:
            return
        at = ring.host.world.agenda.now
        said: Record = {"at": at, "node": ring.host.number, "text": f"{ring}: {text}"}
        said["short"] = f"{ring.label}: {text.partition(' (')[0]}"
        self._append("said", said)

    def _append(self, key: str, record: Record) -> None:
        last = self.records[-1] if self.records else self._first
        last.setdefault(key, []).append(record)

    # --- links

    def sent(self, link: str, number: int, frame: Frames, at_ns: int) -> None:
        """A link is given its frame ``number``; what follows at once is told of this one."""
        self._send = {"link": link, "number": number, "at": at_ns, "what": self._describe(frame.tobytes())}
        self._append("sends", self._send)

    def _describe(self, frame: bytes) -> Record:
        said = describe(frame)
        if self._switches and "from" in said:
            for key, at in (("from", _SOURCE), ("to", _TARGET)):
                said[key] = self._switches.get(frame[at], said[key])
        return said

    def fate(self, link: str, fate: Fate) -> None:
        self._send["fate"] = say_fate(fate)

    def lost(self, rule: str) -> None:
        """The frame that was told last never leaves."""
        self._send["lost"] = rule

    def under_way(self, frame: Frames, due_ns: int) -> None:
        self._send.setdefault("due", []).append(due_ns)
        self._under_way[id(frame)] = frame, self._send

    def arrived(self, frame: Frames) -> None:
        self._under_way.pop(id(frame), None)

    def lost_under_way(self, frame: Frames, rule: str) -> None:
        _, send = self._under_way.pop(id(frame), (frame, {}))
        send["lost"] = rule


def say_fate(fate: Fate) -> str:
    if fate.drop:
        return "lost"
    words = []
    if fate.delay_ns:
        words.append(f"{say_time(fate.delay_ns)} late")
    if fate.copy_delay_ns >= 0:
        words.append("duplicated")
    if fate.corrupt_bit >= 0:
        words.append(f"bit {fate.corrupt_bit} flipped")
    if fate.cut_bytes >= 0:
        words.append(f"cut to {fate.cut_bytes} bytes")
    return ", ".join(words)


def say_step(event: HostEvent) -> str:
    """What happens to a host in its job, in words; empty for what is seen elsewhere."""
    match event:
        case RankCalled(_, operation):
            return f"calls all-reduce {operation.index} ({operation.nbytes} bytes)"
        case Filled(op_index, nbytes):
            return f"has {nbytes} bytes of the tensor of all-reduce {op_index}"
        case MessageArrived(imm=imm, nbytes=nbytes):
            return f"result of message {imm} is here ({nbytes} bytes)"
        case MessageAcknowledged(msg_id=msg_id):
            return f"message {msg_id} is acknowledged"
        case Exchanged(_, _, acknowledged, _, results):
            said = [f"message {msg_id} is acknowledged" for msg_id in acknowledged]
            said += [f"result of message {imm} is here ({nbytes} bytes)" for imm, nbytes, _ in results]
            return "; ".join(said)
        case Completed(found):
            return "; ".join(filter(None, map(say_step, found)))
        case JobFailed(error):
            return f"fails: {error.code}"
        case Woke():
            return "its timer is due"
        case _:
            return ""


def say_time(ns: int) -> str:
    """``1.25 ms``: in the unit that reads well, without loss below a thousandth of it."""
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if abs(ns) >= unit:
            return f"{ns / unit:.4f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{ns} ns"


def describe(frame: bytes) -> Record:
    """A frame in a few fields, as the sequence diagram shows it."""
    try:
        packet = RocePacket.decode_frame(frame)
    except DecodeError as error:
        return {"what": f"frame of {len(frame)} bytes", "error": str(error)}
    said: Record = {  # hosts by the last byte of their address
        "from": packet.ip.src[3],
        "to": packet.ip.dst[3],
        "qp": packet.bth.dest_qp,
        "psn": packet.bth.psn,
        "what": _OPCODE_NAMES.get(packet.opcode, f"opcode {packet.opcode:#x}"),
    }
    if packet.opcode == Opcode.RC_SEND_ONLY and (note := _note_of(packet.payload)) is not None:
        return said | note
    if packet.aeth is not None:
        said["nak"] = packet.aeth.is_nak
    try:
        header = InaHeader.decode(packet.payload[:INA_HEADER_BYTES])
    except DecodeError:
        return said
    return said | {
        "msg": header.msg_id,
        "op": header.op_index,
        "rank": header.rank,
        "packets": header.msg_len,
        "result": header.is_result,
    }


def _note_of(payload: bytes) -> Record | None:
    """The note of one switch to another."""
    try:
        note = TreeNote.decode(payload)
    except DecodeError:
        return None
    return {"what": f"note {note.kind.name}", "msg": note.msg_id, "rank": note.rank}


def say_frame(what: Record) -> str:
    """``NAK, PSN 7, 10.0.0.1 to 10.0.0.2``."""
    if "error" in what:
        return f"{what['what']} ({what['error']})"
    words = [kind_of(what)]
    if "op" in what:
        words.append(f"message {what['msg']} of all-reduce {what['op']}, from rank {what['rank']}")
    elif "msg" in what:
        words.append(f"message {what['msg']}, of rank {what['rank']}")
    words.append(f"PSN {what['psn']}")
    return f"{', '.join(words)} ({end_of(what['from'])} to {end_of(what['to'])}, queue pair {what['qp']})"


def end_of(address: int | str) -> str:
    """The end of a frame's way, as :func:`describe` has it: the name of a host or switch."""
    return address if isinstance(address, str) else f"host{address - 1}"


def kind_of(what: Record) -> str:
    """``ACK``, ``NAK``, ``RESULT WRITE_ONLY_IMM`` or the opcode's name."""
    if "nak" in what:
        return "NAK" if what["nak"] else "ACK"
    return ("RESULT " if what.get("result") else "") + str(what["what"])
