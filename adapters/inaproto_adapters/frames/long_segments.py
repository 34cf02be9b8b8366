"""Runs of RoCE packets as long segments, on an end of a cable inside this machine (veth, to a container or a
namespace): how they are made, and where they may be sent.

The kernel passes a segment of 64 KiB through a cable inside the machine as it passes one packet, and a packet
port at the far end cuts it again (``offloads``). So a packet costs a fraction of a system call, and shaping
counts its bytes as those of single packets and has one timer for all of them. Anybody else at the far end is
given the packets one by one by the kernel, with UDP checksums in them: right, but not what a RoCE card sends.

Invariants:

* A long segment is made of packets that the kernel's own cutting makes again, byte for byte but for the UDP
  checksum: equal headers, IP identifications that count up by ones.
* Frames leave in the order in which they came, by which way ever.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.ports import PortCounters
from inaproto.units import Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames import compiled_ports
from inaproto_adapters.frames.compiled_ports import Sender
from inaproto_adapters.frames.interfaces import driver_of, keeps_long_segments
from inaproto_adapters.frames.link_output import LinkOutput
from inaproto_adapters.frames.offloads import VNET_BYTES, long_header
from inaproto_adapters.frames.roce_segments import HEADERS_BYTES

PACKETS_MAX: Final = 64
"""Of one long segment; later kernels take more."""
_IP_BYTES_MAX: Final = 0xFFFF
_VNET_HDR: Final = 15
_SOL_PACKET: Final = 263
_ID: Final = slice(18, 20)
_IP_CHECKSUM: Final = slice(24, 26)
_KEPT: Final = np.full(HEADERS_BYTES + 6, 0xFF, np.uint8)
_KEPT[HEADERS_BYTES:] = 0
_KEPT[_ID] = _KEPT[_IP_CHECKSUM] = 0
_MASK: Final = _KEPT.view(np.uint64)
_UDP_OF_ROCE: Final = bytes.fromhex("12b7")


def why_single(interface: str) -> str:
    """Why packets leave ``interface`` one by one; empty if runs of them may leave as long segments.

    Only ends of cables keep them for sure: below bridges, VLANs and bonds there may be hardware. Raises
    ``OSError`` for an interface that went just now.
    """
    driver = driver_of(interface)
    if driver != "veth":
        what = f"of the driver {driver}" if driver else "of no driver that is known"
        return f"{interface} is {what}, no end of a cable inside the machine (veth)"
    if not keeps_long_segments(interface):
        return f"gso is off at {interface}, or its segments are short (ip -details link show {interface})"
    return ""


def open_long_output(
    name: str,
    packets: socket.socket,
    long: socket.socket,
    counters: PortCounters,
    *,
    queue_bytes_max: int,
    frame_bytes_max: int,
) -> LinkOutput:
    """Output where runs of RoCE packets leave as long segments by ``long``; all else, without the compiled
    part of ports, by ``packets``. Raises ``OSError``."""
    long.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    calls = compiled_ports.active()
    if calls is None:
        return LongOutput(
            name,
            packets,
            long,
            counters,
            queue_bytes_max=queue_bytes_max,
            frame_bytes_max=frame_bytes_max,
        )
    fd = long.fileno()
    sender = Sender(calls, fd, has_vnet=True, long_bytes_max=frame_bytes_max, packets_max=PACKETS_MAX)
    output = LinkOutput(name, packets.send, counters, queue_bytes_max=queue_bytes_max, sender=sender)
    output.full = long
    return output


class LongOutput(LinkOutput):
    """Runs of RoCE packets by ``long``, a socket with a ``virtio_net_hdr``, all else by ``packets``.

    The twin of ``ports_send``, which sends everything by ``long``.
    """

    def __init__(
        self,
        name: str,
        packets: socket.socket,
        long: socket.socket,
        counters: PortCounters,
        *,
        queue_bytes_max: int,
        frame_bytes_max: int,
    ) -> None:
        super().__init__(name, packets.send, counters, queue_bytes_max=queue_bytes_max)
        self._long = long
        self._frame_bytes_max = frame_bytes_max
        self._buffer: Frames = np.empty(VNET_BYTES + ETHERNET_HEADER_BYTES + _IP_BYTES_MAX, np.uint8)
        self._bytes = self._buffer.data

    def _send(self, frames: Frames) -> int:
        n, length = frames.shape
        self.full = None
        # What a frame could hold goes frame by frame: who receives it finds it in slots, and cuts nothing.
        if n < 2 or not length <= self._frame_bytes_max < n * length or not is_run(frames):
            return super()._send(frames)
        step = length - HEADERS_BYTES
        at_once = min(PACKETS_MAX, (_IP_BYTES_MAX + ETHERNET_HEADER_BYTES - HEADERS_BYTES) // step)
        left = done = 0
        while done < n:
            # One packet is no long segment: the kernel would take it for one that lacks its checksum.
            rows = frames[done : done + at_once - (n - done == at_once + 1)]
            try:
                self._long.send(self._laid_out(rows))
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._wait_writable = error.errno == errno.EAGAIN
                    self.full = self._long
                    break
                self.refused(error, len(rows))
            else:
                left += len(rows)
            done += len(rows)
        self._counters.frames_out += left
        self._counters.bytes_out += left * length
        return done

    def _laid_out(self, rows: Frames) -> memoryview:
        n, length = rows.shape
        step = length - HEADERS_BYTES
        begin = VNET_BYTES + HEADERS_BYTES
        end = begin + n * step
        self._bytes[:begin] = long_header(rows[0, :HEADERS_BYTES].tobytes(), step, n * step)
        self._buffer[begin:end].reshape(n, step)[:] = rows[:, HEADERS_BYTES:]
        return self._bytes[:end]


def is_run(frames: Frames) -> bool:
    """Whether frames (n, bytes) are RoCE packets that one long segment can be, as those of a message are."""
    length = frames.shape[1]
    if length <= HEADERS_BYTES + 6:
        return False
    first = frames[0, :HEADERS_BYTES].tobytes()
    total = length - ETHERNET_HEADER_BYTES
    if (
        first[12:15] != b"\x08\x00\x45"
        or first[16:18] != total.to_bytes(2, "big")
        or first[20] & 0x3F
        or first[21]
        or first[23] != socket.IPPROTO_UDP
        or first[36:38] != _UDP_OF_ROCE
        or first[38:42] != (total - 20).to_bytes(2, "big") + b"\0\0"
    ):
        return False
    headers: NDArray[np.uint8] = frames[:, : HEADERS_BYTES + 6].copy()
    words = headers.view(np.uint64)
    if ((words ^ words[0]) & _MASK).any():
        return False
    ids = headers[:, _ID].view(">u2")[:, 0].astype(np.uint16)
    return bool((ids - ids[0] == np.arange(len(ids), dtype=np.uint16)).all())
