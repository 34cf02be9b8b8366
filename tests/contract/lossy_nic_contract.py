"""What NICs keep whose wire can be given weather: all arrives, once and in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pytest
import trio

from inaproto.ports import Completion, CompletionKind, Nic, QpAddress, QpAttributes, Status
from tests.contract.nic_contract import Buffer, connect, noise

_GIVE_UP_S: Final = 300
_SLOTS: Final = 6
LOSS_STATISTICS: Final = (
    "retransmits",
    "duplicates",
    "out_of_sequence",
    "naks_sent",
    "naks_received",
    "icrc_errors",
)


@dataclass(slots=True)
class Stream:
    """Messages of one queue pair through a few slots of the receiver, each checked when it arrives."""

    left: Nic
    right: Nic
    here: QpAddress
    there: QpAddress
    lengths: list[int]
    source: Buffer
    target: Buffer
    posted: int = 0
    sent: int = 0
    received: int = 0

    @classmethod
    def open(cls, left: Nic, right: Nic, lengths: list[int], seed: int) -> Stream:
        here, there = connect(left, right, QpAttributes(timeout=10), psns=(0xFFFFFE - seed, seed))
        source = Buffer.on(left, noise(sum(lengths), seed))
        target = Buffer.on(right, bytearray(_SLOTS * max(lengths)))
        stream = cls(left, right, here, there, lengths, source, target)
        for wr_id in range(_SLOTS):
            right.post_receive(there.qpn, wr_id)
        stream.post()
        return stream

    @property
    def finished(self) -> bool:
        return self.sent == self.received == len(self.lengths)

    def post(self) -> None:
        while self.posted < min(len(self.lengths), self.received + _SLOTS):
            begin = sum(self.lengths[: self.posted])
            self.left.post_write_imm(
                self.here.qpn,
                self.posted,
                [self.source.part(begin, self.lengths[self.posted])],
                remote_va=self.target.region.va + self._slot(self.posted),
                rkey=self.target.region.key,
                imm=self.posted,
            )
            self.posted += 1

    def handle(self, completion: Completion) -> None:
        assert completion.status is Status.SUCCESS
        if completion.kind is CompletionKind.SEND:
            assert completion.wr_id == self.sent
            self.sent += 1
            return
        number, nbytes = self.received, self.lengths[self.received]
        assert (completion.imm, completion.nbytes) == (number, nbytes)
        slot, begin = self._slot(number), sum(self.lengths[:number])
        assert self.target.data[slot : slot + nbytes] == self.source.data[begin : begin + nbytes]
        self.target.data[slot : slot + nbytes] = bytes(nbytes)
        self.received += 1
        self.right.post_receive(self.there.qpn, completion.wr_id)
        self.post()

    def _slot(self, number: int) -> int:
        return number % _SLOTS * max(self.lengths)


class LossyNicContract(ABC):
    """Over a wire that loses, repeats, delays and damages frames, the same bytes arrive as without."""

    @abstractmethod
    def lossy_pair(self, seed: int) -> AbstractAsyncContextManager[tuple[Nic, Nic]]:
        """Two NICs under weather of all kinds in both directions."""

    @pytest.mark.parametrize("seed", range(8))
    async def test_everything_arrives_exactly(self, clock: object, seed: int) -> None:
        """Each message has bytes of its own, so one that is missing, mixed up or placed late shows."""
        rng = np.random.default_rng(seed)
        with trio.fail_after(_GIVE_UP_S):
            async with self.lossy_pair(seed) as (left, right), trio.open_nursery() as nursery:
                nursery.start_soon(left.run)
                nursery.start_soon(right.run)
                streams: dict[tuple[Nic, int], Stream] = {}
                for nic, peer in ((left, right), (left, right), (right, left)):
                    lengths = [int(n) for n in rng.integers(1, 80_000, 40)]
                    stream = Stream.open(nic, peer, lengths, seed)
                    streams[nic, stream.here.qpn] = streams[peer, stream.there.qpn] = stream

                async def serve(nic: Nic) -> None:
                    while not all(stream.finished for stream in streams.values()):
                        for completion in await nic.wait_completions():
                            streams[nic, completion.qpn].handle(completion)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(serve, left)
                nursery.start_soon(serve, right)
            totals = {name: left.statistics()[name] + right.statistics()[name] for name in LOSS_STATISTICS}
            assert all(totals.values()), totals
