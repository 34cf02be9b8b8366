"""Frames of messages with arrays: there and back, however the stream is cut, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.errors import DecodeError
from inaproto.wire.control import encode_control
from inaproto.wire.messages.array_frames import PREFIX_BYTES, FrameDecoder, encode_frame

MESSAGES = [
    (encode_control("push", 1, clock=3), [np.arange(5, dtype=np.int32).data]),
    (encode_control("heartbeat", 2), []),
    (encode_control("attach", 3), [np.arange(3.0).data, memoryview(b""), memoryview(b"xyz")]),
]
PAYLOADS = [
    np.arange(5, dtype=np.int32).tobytes(),
    b"",
    np.arange(3.0).tobytes() + b"xyz",
]


def stream() -> bytes:
    return b"".join(part for message, arrays in MESSAGES for part in encode_frame(message, arrays))


def test_there_and_back_in_chunks_of_every_size() -> None:
    data = stream()
    for step in range(1, len(data) + 1):
        decoder = FrameDecoder(64)
        frames = [frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])]
        decoder.finish()
        assert [frame.record["id"] for frame in frames] == [1, 2, 3]
        assert [bytes(frame.payload) for frame in frames] == PAYLOADS
        assert decoder.buffered_bytes == 0


def test_arrays_are_not_copied_when_they_are_framed() -> None:
    array = np.arange(4, dtype=np.int64)
    _, part = encode_frame(MESSAGES[1][0], [array.data])
    array[0] = 9
    assert bytes(part) == array.tobytes()


def test_a_payload_is_the_receivers_own() -> None:
    (frame,) = FrameDecoder(64).feed(b"".join(encode_frame(*MESSAGES[0])))
    np.frombuffer(frame.payload, np.int32)[0] = 7
    assert frame.payload[0] == 7


def test_a_payload_beyond_the_limit_is_refused_by_its_length() -> None:
    data = b"".join(encode_frame(*MESSAGES[0]))
    assert FrameDecoder(20).feed(data)
    decoder = FrameDecoder(19)
    with pytest.raises(DecodeError, match="a payload of 20 bytes, at most 19") as caught:
        decoder.feed(data[:PREFIX_BYTES])
    for again in (decoder.finish, lambda: decoder.feed(b"")):
        with pytest.raises(DecodeError) as repeated:
            again()
        assert repeated.value is caught.value


@pytest.mark.parametrize("length", [0, (1 << 20) + 1])
def test_a_message_has_a_length(length: int) -> None:
    with pytest.raises(DecodeError, match=f"a message of {length} bytes, not 1 to 1048576 .at byte 8"):
        FrameDecoder(0).feed(bytes(8) + length.to_bytes(4, "big"))


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(DecodeError, match="control: not msgpack"):
        FrameDecoder(0).feed(bytes(8) + b"\0\0\0\1\xc1")


def test_a_stream_may_end_between_frames_only() -> None:
    data = b"".join(encode_frame(*MESSAGES[0]))
    for cut in range(1, len(data)):
        decoder = FrameDecoder(64)
        assert not any(decoder.feed(data[at : at + 1]) for at in range(cut))
        assert decoder.buffered_bytes == cut
        with pytest.raises(DecodeError, match=f"frame: the stream ended after {cut} bytes of a frame"):
            decoder.finish()
