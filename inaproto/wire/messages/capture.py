"""Control messages of ``inaproto capture``: what crosses the ports of a switch, as pcapng.

client -> switch: Capture (one end of a stream socket beside it, into which the switch writes pcapng),
CaptureEnd, Ping.
switch -> client: CaptureBegun, CaptureEnded, Error, Pong. All that it wrote is in the socket, which it
closes, before CaptureEnded.
"""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.wire.messages.types import U32, U64, Explanation, Message, Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Message, type="capture"):
    """``ports`` by their names; none: all, those that come up later as well. 0: no limit."""

    ports: Names = ()
    frames_max: U64 = 0
    duration_ms: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureBegun(Message, type="capture_begun"):
    ports: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEnd(Message, type="capture_end"):
    """The client has enough: what is queued still comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEnded(Message, type="capture_ended"):
    """``lost``: frames that did not fit the queue."""

    frames: U64
    lost: U64
    reason: Explanation
