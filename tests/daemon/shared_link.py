"""Connections that share one link, in virtual time: what they want of it is shared max-min, as TCP would."""

from __future__ import annotations

import trio

from inaproto.core.models.admission import max_min
from inaproto.ports import ByteStream
from inaproto_adapters.memory import StreamTiming, open_stream_pair

TICK_S = 0.001
BUFFER_BYTES = 128 << 10


class SharedLink:
    """``rate`` bytes/s from the ones to the others; :meth:`run` it. Nothing goes the other way."""

    def __init__(self, rate: int) -> None:
        self._per_tick = int(rate * TICK_S)
        self._ways: list[tuple[ByteStream, ByteStream]] = []
        self._held: list[bytearray] = []
        self.moved = 0

    def connect(self) -> tuple[ByteStream, ByteStream]:
        """Where one sends, and where the other receives."""
        timing = StreamTiming(bytes_max=BUFFER_BYTES)
        near, into = open_stream_pair(timing)
        out, far = open_stream_pair(timing)
        self._ways.append((into, out))
        self._held.append(bytearray())
        return near, far

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for held, (into, _) in zip(self._held, self._ways, strict=True):
                self._take(held, into)
            self._give()
            await trio.sleep(TICK_S)

    def _take(self, held: bytearray, into: ByteStream) -> None:
        while len(held) < BUFFER_BYTES:
            try:
                data, _ = into.receive_nowait()
            except (BlockingIOError, OSError):
                return
            if not data:  # its sender has closed
                return
            held += data

    def _give(self) -> None:
        """A tick's worth, max-min over those whose receivers take anything."""
        left, willing = self._per_tick, list(range(len(self._ways)))
        while left and willing:
            shares = max_min(left, [len(self._held[one]) for one in willing])
            stuck = []
            for one, share in zip(willing, shares, strict=True):
                wanted = min(share, len(self._held[one]), left)
                sent = self._pass_on(one, wanted)
                left -= sent
                if sent < wanted or not wanted:
                    stuck.append(one)
            if not stuck:
                return
            willing = [one for one in willing if one not in stuck]

    def _pass_on(self, one: int, nbytes: int) -> int:
        held, sent = self._held[one], 0
        while sent < nbytes:
            try:
                sent += self._ways[one][1].send_nowait(memoryview(bytes(held[sent:nbytes])))
            except (BlockingIOError, OSError):  # its receiver does not read: the rest is the others'
                break
        del held[:sent]
        self.moved += sent
        return sent
