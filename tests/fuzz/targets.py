"""One fuzz target per decoder: any bytes are accepted or refused with ``DecodeError``, nothing else.

A target returns whether it accepted the bytes. What it accepts it also holds to the decoder's promises
(round trips, scalar and vector forms alike): a broken promise is an ``AssertionError``, a finding
like any other exception.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from inaproto.errors import DecodeError
from inaproto.wire import icrc
from inaproto.wire.control import ControlDecoder, decode_control, encode_control
from inaproto.wire.control_messages import UnknownMessage, decode_message, encode_message
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.files.capture_reader import CaptureReader, read_capture
from inaproto.wire.files.log_entries import decode_entries, encode_entry
from inaproto.wire.files.pcapng import CapturedFrame
from inaproto.wire.ina_header import InaHeader
from inaproto.wire.ipv4 import Ipv4Header, internet_checksum
from inaproto.wire.messages.array_frames import Frame, FrameDecoder
from inaproto.wire.roce import Aeth, Bth, Imm, Reth, RocePacket
from inaproto.wire.tree_note import TreeNote
from inaproto.wire.trunk_hello import TrunkHello
from inaproto.wire.udp import UdpHeader
from inaproto.wire.vector import PlainRun, decode_runs
from inaproto_adapters.frames.framing import FrameReader
from tests.fuzz import corpus


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    corpus: tuple[bytes, ...]
    """Valid records: where mutation starts."""
    decode: Callable[[bytes], Any]
    """Raises ``DecodeError`` for bytes that it refuses."""

    def accepts(self, data: bytes) -> bool:
        """Run the decoder; any exception but ``DecodeError`` is a finding."""
        try:
            self.decode(data)
        except DecodeError as error:
            if not (error.layer and error.reason and error.offset >= 0):
                raise AssertionError(f"a refusal that says nothing: {error}") from error
            return False
        return True


def ethernet(data: bytes) -> None:
    assert EthernetHeader.decode(data).encode() == data[:14]


def ipv4(data: bytes) -> None:
    header = Ipv4Header.decode(data)
    encoded = header.encode()
    assert header.header_bytes <= header.total_length <= len(data)
    right = internet_checksum(data[: header.header_bytes]) == 0
    if right and data[10:12] != b"\xff\xff":  # 0xffff and 0 are one number in ones' complement
        assert encoded == data[: header.header_bytes]
    assert Ipv4Header.decode(encoded + data[header.header_bytes :], verify_checksum=True) == header


def udp(data: bytes) -> None:
    assert UdpHeader.decode(data).encode() == data[:8]


def extension_header(kind: type[Bth | Reth | Imm | Aeth], nbytes: int) -> Callable[[bytes], None]:
    def decode(data: bytes) -> None:
        record = kind.decode(data)
        assert record.encode() == data[:nbytes]
        assert str(record)

    return decode


def roce_packet(data: bytes) -> None:
    packet = RocePacket.decode_frame(data)
    assert str(packet)
    again = RocePacket.decode_frame(packet.encode_frame(), verify=True)
    assert (again.reth, again.imm, again.aeth) == (packet.reth, packet.imm, packet.aeth)
    assert (again.payload, again.ip.src, again.ip.dst) == (packet.payload, packet.ip.src, packet.ip.dst)
    RocePacket.decode_frame(data, verify=True)


def invariant_crc(data: bytes) -> None:
    frame = bytearray(data)
    icrc.verify(frame)
    icrc.seal(frame)
    assert icrc.verify(frame)


def ina_header(data: bytes) -> None:
    header = InaHeader.decode(data)
    assert header.encode() == data[:40]
    assert str(header)


def trunk_hello(data: bytes) -> None:
    assert TrunkHello.decode(data).encode() == data


def tree_note(data: bytes) -> None:
    note = TreeNote.decode(data)
    assert note.encode() == data
    assert str(note)


def runs(data: bytes) -> None:
    """Two bytes of frame length, then frames; every row must be what the scalar codec makes of it."""
    nbytes = int.from_bytes(data[:2], "big") % 160
    n = (len(data) - 2) // nbytes if nbytes and len(data) > 2 else 0
    if n == 0:
        raise DecodeError("fuzz", "no frame")
    frames = np.frombuffer(data, np.uint8, n * nbytes, 2).reshape(n, nbytes)
    at = 0
    for run in decode_runs(frames):
        rows = [frame.tobytes() for frame in run.frames]
        assert rows == [frame.tobytes() for frame in frames[at : at + len(rows)]]
        at += len(rows)
        if isinstance(run, PlainRun):
            assert not any(map(is_roce, rows))
            continue
        intact, verified, payloads = run.intact(), run.verify(), run.payload()
        assert intact == verified.all()
        for row, frame in enumerate(rows):
            packet = RocePacket.decode_frame(frame)
            assert bool(verified[row]) == icrc.verify(frame)
            assert payloads[row].tobytes() == packet.payload
            assert (int(run.psn[row]), bool(run.ack_request[row])) == (packet.bth.psn, packet.bth.ack_request)
            assert (run.opcode, run.dest_qp, run.pad) == (packet.opcode, packet.bth.dest_qp, packet.pad)
            assert (run.imm is None) == (packet.imm is None)
            assert (run.reth is None) == (packet.reth is None)
            assert (run.aeth is None) == (packet.aeth is None)
    assert at == n


FRAME_BYTES_MAX = 200
"""Of ``frame_stream``: small, so that the ends of the receive buffer are met often."""


def frame_stream(data: bytes) -> None:
    """Frames with length prefixes, in pieces of the size that the first byte says, against a plain loop."""
    step = data[0] + 1 if data else 1
    stream = data[1:]
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, buffer_bytes=2 * (FRAME_BYTES_MAX + 4))
    read: list[bytes] = []
    at = 0
    while at < len(stream) and reader.fault is None:
        room = reader.free()
        nbytes = min(step, len(room), len(stream) - at)
        room[:nbytes] = stream[at : at + nbytes]
        at += nbytes
        blocks = reader.take(nbytes)
        read += [frame.tobytes() for block in blocks for frame in block]
        while reader.more:
            blocks = reader.take(0)
            read += [frame.tobytes() for block in blocks for frame in block]
    expected: list[bytes] = []
    at = 0
    while len(stream) - at >= 4:
        length = int.from_bytes(stream[at : at + 4], "big")
        if not 1 <= length <= FRAME_BYTES_MAX or len(stream) - at - 4 < length:
            break
        expected.append(stream[at + 4 : at + 4 + length])
        at += 4 + length
    assert read == [frame for frame in expected if len(frame) >= 14]
    why = reader.end()
    assert (why is None) == (at == len(stream))
    if why is not None:
        raise DecodeError("frame stream", why, at)


def is_roce(frame: bytes) -> bool:
    try:
        RocePacket.decode_frame(frame)
    except DecodeError:
        return False
    return True


def control_record(data: bytes) -> None:
    record = dict(decode_control(data))
    del record["v"]
    again = decode_control(encode_control(record.pop("type"), record.pop("id"), **record)[4:])
    assert repr(sorted(again)) == repr(sorted({"v", "type", "id", *record}))


def control_stream(data: bytes) -> None:
    """The first byte says how the stream is cut; whole or cut, it must decode to the same."""
    whole, cut = ControlDecoder(), ControlDecoder()
    stream = data[1:]
    step = data[0] + 1 if data else 1
    seen = []
    try:
        expected = whole.feed(stream)
    except DecodeError:
        try:
            for at in range(0, len(stream), step):
                cut.feed(stream[at : at + step])
        except DecodeError:
            raise
        raise AssertionError("refused whole, accepted in pieces") from None
    for at in range(0, len(stream), step):
        seen += cut.feed(stream[at : at + step])
    assert repr(seen) == repr(expected)
    assert whole.buffered_bytes == cut.buffered_bytes
    whole.finish()


def control_message(data: bytes) -> None:
    message = decode_message(decode_control(data))
    assert repr(message)
    if not isinstance(message, UnknownMessage):
        assert repr(decode_message(decode_control(encode_message(message)[4:]))) == repr(message)


PAYLOAD_BYTES_MAX = 300


def array_stream(data: bytes) -> None:
    """The first byte says how the stream is cut; whole or cut, it must decode to the same."""
    stream, step = data[1:], data[0] + 1 if data else 1
    whole, pieces = _frames_in_steps(stream, len(stream) or 1), _frames_in_steps(stream, step)
    assert repr(whole) == repr(pieces)
    if isinstance(whole, DecodeError):
        raise whole


def _frames_in_steps(stream: bytes, step: int) -> list[tuple[str, bytes]] | DecodeError:
    decoder = FrameDecoder(PAYLOAD_BYTES_MAX)
    frames: list[Frame] = []
    try:
        for at in range(0, len(stream), step):
            frames += decoder.feed(stream[at : at + step])
        decoder.finish()
    except DecodeError as error:
        return error
    return [(repr(frame.record), bytes(frame.payload)) for frame in frames]


def log_entries(data: bytes) -> None:
    entries = decode_entries(memoryview(data))
    assert entries.end <= len(data)
    assert decode_entries(memoryview(data[: entries.end])) == entries
    again = b"".join(part for body in entries.bodies for part in encode_entry([body], 0))
    assert [bytes(body) for body in decode_entries(memoryview(again)).bodies] == [*map(bytes, entries.bodies)]


def capture(data: bytes) -> None:
    """The first byte says how the stream is cut; whole or cut, it must read the same."""
    stream, step = data[1:], data[0] + 1 if data else 1
    whole, pieces = _read_in_steps(stream, len(stream) or 1), _read_in_steps(stream, step)
    assert repr(whole) == repr(pieces)
    if isinstance(whole, DecodeError):
        raise whole
    assert whole == read_capture(stream)


def _read_in_steps(stream: bytes, step: int) -> list[CapturedFrame] | DecodeError:
    reader = CaptureReader()
    frames: list[CapturedFrame] = []
    try:
        for at in range(0, len(stream), step):
            frames += reader.feed(stream[at : at + step])
        reader.finish()
    except DecodeError as error:
        return error
    return frames


TARGETS = {
    target.name: target
    for target in (
        Target("ethernet", corpus.FRAMES, ethernet),
        Target("ipv4", corpus.IPV4_DATAGRAMS, ipv4),
        Target("udp", corpus.UDP_DATAGRAMS, udp),
        Target("bth", corpus.BTHS, extension_header(Bth, 12)),
        Target("reth", corpus.RETHS, extension_header(Reth, 16)),
        Target("imm", corpus.IMMS, extension_header(Imm, 4)),
        Target("aeth", corpus.AETHS, extension_header(Aeth, 4)),
        Target("roce_packet", corpus.FRAMES, roce_packet),
        Target("icrc", corpus.FRAMES, invariant_crc),
        Target("ina_header", corpus.INA_HEADERS, ina_header),
        Target("tree_note", corpus.TREE_NOTES, tree_note),
        Target("trunk_hello", corpus.TRUNK_HELLOS, trunk_hello),
        Target("array_stream", corpus.ARRAY_STREAMS, array_stream),
        Target("log_entries", corpus.LOGS, log_entries),
        Target("capture", corpus.CAPTURES, capture),
        Target("decode_runs", corpus.RUNS, runs),
        Target("frame_stream", corpus.FRAME_STREAMS, frame_stream),
        Target("control_record", corpus.CONTROL_RECORDS, control_record),
        Target("control_stream", corpus.CONTROL_STREAMS, control_stream),
        Target("control_message", corpus.CONTROL_RECORDS, control_message),
    )
}


def find_target(name: str) -> Target:
    """The target of that name, or the end of the program with the names that exist."""
    if name not in TARGETS:
        sys.exit(f"no fuzz target {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]
