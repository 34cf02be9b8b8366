"""What every ``Nic`` does, hardware or software. One class per adapter inherits it.

Two NICs that reach each other; the tests see them only through ``inaproto.ports``. Adapters whose wire can
be given weather keep ``lossy_nic_contract`` too.
"""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
import trio
import trio.testing

from inaproto.errors import FabricError, LocalMisuse
from inaproto.ports import (
    Completion,
    CompletionKind,
    MemoryRegion,
    Nic,
    NicCapabilities,
    PortClosed,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.wire.messages.infiniband import InfinibandPort

_GIVE_UP_S: Final = 600
STATISTICS: Final = frozenset(
    {
        "packets_sent",
        "packets_received",
        "retransmits",
        "timeouts",
        "naks_sent",
        "naks_received",
        "duplicates",
        "out_of_sequence",
        "icrc_errors",
    }
)

AGAIN: Final = ("retransmits", "timeouts", "naks_sent", "duplicates", "out_of_sequence")


LID_OF_NOBODY: Final = 0xBFFF
"""The highest of a port: subnet managers give the lowest first."""


def _nobody(beside: QpAddress) -> QpAddress:
    """An address on the network of ``beside`` that nobody there has."""
    if beside.infiniband is None:
        return QpAddress(b"\x52\x54\0\0\0\x63", beside.ip[:-1] + b"\x63", 77, 6)
    at = InfinibandPort(gid=beside.infiniband.gid[:15] + b"\x63", lid=LID_OF_NOBODY)
    return QpAddress(bytes(6), bytes(4), 77, 6, infiniband=at)


def _place(of: NicCapabilities) -> bytes:
    """What no other NIC has."""
    return of.mac if of.infiniband is None else of.infiniband.gid


def noise(nbytes: int, seed: int) -> bytearray:
    return bytearray(np.random.default_rng(seed).bytes(nbytes))


@dataclass(slots=True)
class Buffer:
    """Registered memory of one NIC."""

    data: bytearray
    region: MemoryRegion

    @classmethod
    def on(cls, nic: Nic, data: bytearray) -> Buffer:
        return cls(data, nic.register_memory(memoryview(data)))

    def part(self, begin: int, nbytes: int) -> Segment:
        return Segment(self.region.key, self.region.va + begin, nbytes)

    def whole(self) -> Segment:
        return self.part(0, len(self.data))


async def completions(nic: Nic, n: int) -> list[Completion]:
    """The next ``n`` completions; more than asked for is a fault."""
    got: list[Completion] = []
    while len(got) < n:
        got += await nic.wait_completions()
    assert len(got) == n, got
    return got


def connect(
    left: Nic, right: Nic, attributes: QpAttributes | None = None, psns: tuple[int, int] = (0xFFFFF0, 7)
) -> tuple[QpAddress, QpAddress]:
    """A queue pair on each side, connected to each other; the default PSNs wrap soon."""
    here, there = left.create_qp(psn=psns[0]), right.create_qp(psn=psns[1])
    left.connect_qp(here.qpn, there, attributes or QpAttributes())
    right.connect_qp(there.qpn, here, attributes or QpAttributes())
    return here, there


async def transfer(
    left: Nic, right: Nic, qps: tuple[QpAddress, QpAddress], source: bytearray, *, imm: int = 0xDEADBEEF
) -> bytearray:
    """Write ``source`` from left to right and return what lies there afterwards, guard bytes checked."""
    guard = 64
    sent = Buffer.on(left, source)
    target = Buffer.on(right, bytearray(b"\xa5" * (len(source) + 2 * guard)))
    right.post_receive(qps[1].qpn, 11)
    left.post_write_imm(
        qps[0].qpn,
        22,
        [sent.whole()],
        remote_va=target.region.va + guard,
        rkey=target.region.key,
        imm=imm,
    )
    received, done = await completions(right, 1), await completions(left, 1)
    assert received == [
        Completion(qps[1].qpn, CompletionKind.RECEIVE_IMM, 11, Status.SUCCESS, imm, len(source))
    ]
    assert [(c.qpn, c.kind, c.wr_id, c.status) for c in done] == [
        (qps[0].qpn, CompletionKind.SEND, 22, Status.SUCCESS)
    ]
    assert target.data[:guard] == target.data[-guard:] == b"\xa5" * guard
    left.deregister_memory(sent.region)
    right.deregister_memory(target.region)
    return target.data[guard:-guard]


async def _refusal(nic: Nic, qpn: int) -> FabricError | None:
    """Why it is not connected."""
    try:
        await nic.wait_connected(qpn)
    except FabricError as error:
        return error
    return None


class NicContract(ABC):
    @abstractmethod
    def pair(self) -> AbstractAsyncContextManager[tuple[Nic, Nic]]:
        """Two NICs on one lossless network, not running yet, closed at the end."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Nic, Nic]]:
        with trio.fail_after(_GIVE_UP_S):
            async with self.pair() as (left, right), trio.open_nursery() as nursery:
                nursery.start_soon(left.run)
                nursery.start_soon(right.run)
                yield left, right
                nursery.cancel_scope.cancel()

    async def test_capabilities_and_statistics(self, clock: object) -> None:
        async with self.running() as (left, right):
            for nic in (left, right):
                assert nic.capabilities.mtu_max >= 1024
                assert nic.capabilities.qps_max >= 1
                assert len(nic.capabilities.mac) == 6
                assert len(nic.capabilities.ip) in (4, 16)
                assert nic.statistics().keys() >= STATISTICS
            assert _place(left.capabilities) != _place(right.capabilities)
            assert left.create_qp(psn=1).infiniband == left.capabilities.infiniband

    @pytest.mark.parametrize("mtu", [256, 1024, 4096])
    async def test_writes_of_every_length_arrive_whole(self, clock: object, mtu: int) -> None:
        lengths = [1, 2, 3, 4, 1021, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 170 * mtu - 5, 600 * mtu]
        async with self.running() as (left, right):
            qps = connect(left, right, QpAttributes(mtu=mtu))
            for seed, nbytes in enumerate(lengths):
                data = noise(nbytes, seed)
                assert await transfer(left, right, qps, data, imm=seed) == data

    async def test_a_write_of_several_mib(self, clock: object) -> None:
        async with self.running() as (left, right):
            data = noise((5 << 20) + 13, 1)
            assert await transfer(left, right, connect(left, right), data) == data

    async def test_an_empty_write_delivers_its_immediate(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, there = connect(left, right)
            right.post_receive(there.qpn, 1)
            left.post_write_imm(here.qpn, 2, [], remote_va=0, rkey=0, imm=5)
            assert await completions(right, 1) == [
                Completion(there.qpn, CompletionKind.RECEIVE_IMM, 1, Status.SUCCESS, 5, 0)
            ]
            assert (await completions(left, 1))[0].status is Status.SUCCESS

    async def test_gather_lists(self, clock: object) -> None:
        """Segments that end inside packets, on packet bounds, that are empty, and from many regions."""
        cuts = [0, 40, 41, 1024, 1024, 2048, 2100, 5000, 70_000, 70_001]
        async with self.running() as (left, right):
            here, there = connect(left, right)
            pieces = [Buffer.on(left, noise(b - a + 16, a)) for a, b in pairwise(cuts)]
            segments = [piece.part(8, len(piece.data) - 16) for piece in pieces]
            expected = b"".join(bytes(piece.data[8:-8]) for piece in pieces)
            target = Buffer.on(right, bytearray(len(expected)))
            right.post_receive(there.qpn, 1)
            left.post_write_imm(
                here.qpn, 1, segments, remote_va=target.region.va, rkey=target.region.key, imm=1
            )
            await completions(right, 1)
            assert target.data == expected

    async def test_many_messages_keep_their_order(self, clock: object) -> None:
        """More messages than receives: the receiver posts anew, completion by completion."""
        lengths = [int(n) for n in np.random.default_rng(5).integers(1, 9_000, 300)]
        async with self.running() as (left, right):
            here, there = connect(left, right)
            source = Buffer.on(left, noise(9_000, 3))
            target = Buffer.on(right, bytearray(9_000))
            for wr_id in range(32):
                right.post_receive(there.qpn, wr_id)
            arrived: list[tuple[int, int]] = []
            done: list[int] = []
            posted = 0
            while len(done) < len(lengths):
                while posted < min(len(lengths), len(done) + 16):
                    left.post_write_imm(
                        here.qpn,
                        posted,
                        [source.part(0, lengths[posted])],
                        remote_va=target.region.va,
                        rkey=target.region.key,
                        imm=posted,
                    )
                    posted += 1
                done += [c.wr_id for c in await left.wait_completions()]
                for completion in right.poll():
                    arrived.append((completion.imm, completion.nbytes))
                    right.post_receive(there.qpn, completion.wr_id)
            while len(arrived) < len(lengths):
                arrived += [(c.imm, c.nbytes) for c in await right.wait_completions()]
            assert done == list(range(len(lengths)))
            assert arrived == list(enumerate(lengths))

    async def test_several_queue_pairs_in_both_directions_at_once(self, clock: object) -> None:
        async with self.running() as (left, right):
            n, nbytes = 5, 300_000
            pairs = [connect(left, right, psns=(1000 * i, 0xFFFFFF - i)) for i in range(n)]
            expected: list[tuple[bytearray, bytearray]] = []
            for i, (here, there) in enumerate(pairs):
                for nic, peer, own, other in ((left, right, here, there), (right, left, there, here)):
                    source = Buffer.on(nic, noise(nbytes + i, own.qpn))
                    target = Buffer.on(peer, bytearray(nbytes + i))
                    expected.append((target.data, source.data))
                    peer.post_receive(other.qpn, i)
                    nic.post_write_imm(
                        own.qpn,
                        i,
                        [source.whole()],
                        remote_va=target.region.va,
                        rkey=target.region.key,
                        imm=i,
                    )
            for nic in (left, right):
                for completion in await completions(nic, 2 * n):
                    assert completion.status is Status.SUCCESS
                    if completion.kind is CompletionKind.RECEIVE_IMM:
                        assert completion.imm == completion.wr_id
            assert all(target == source for target, source in expected)

    async def test_a_write_waits_for_a_receive(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, there = connect(left, right)
            source, target = Buffer.on(left, noise(5000, 1)), Buffer.on(right, bytearray(5000))
            for imm in range(3):
                left.post_write_imm(
                    here.qpn,
                    imm,
                    [source.whole()],
                    remote_va=target.region.va,
                    rkey=target.region.key,
                    imm=imm,
                )
            # What is sent later arrives later, and ``transfer`` sees nothing complete but its own.
            other = connect(left, right)
            assert await transfer(left, right, other, noise(100, 1)) == noise(100, 1)
            for wr_id in range(3):
                right.post_receive(there.qpn, wr_id)
            assert [c.imm for c in await completions(right, 3)] == [0, 1, 2]
            assert [c.status for c in await completions(left, 3)] == [Status.SUCCESS] * 3
            assert target.data == source.data

    @pytest.mark.parametrize("fault", ["key", "beyond", "before", "deregistered", "read only"])
    async def test_memory_that_a_peer_may_not_write(self, clock: object, fault: str) -> None:
        """The writer learns it, both queue pairs flush what they hold, memory stays as it was."""
        async with self.running() as (left, right):
            here, there = connect(left, right)
            source = Buffer.on(left, noise(3000, 1))
            target = Buffer.on(right, bytearray(b"\x11" * 3000))
            region = target.region
            if fault == "deregistered":
                right.deregister_memory(region)
            elif fault == "read only":
                region = right.register_memory(memoryview(bytes(3000)))
            va = region.va + {"beyond": 1, "before": -1}.get(fault, 0)
            rkey = region.key ^ (fault == "key")
            right.post_receive(there.qpn, 1)
            right.post_receive(there.qpn, 2)
            for wr_id in (7, 8):
                left.post_write_imm(here.qpn, wr_id, [source.whole()], remote_va=va, rkey=rkey, imm=1)
            sent = await completions(left, 2)
            assert [(c.wr_id, c.status) for c in sent] == [(7, Status.REMOTE_ACCESS), (8, Status.FLUSHED)]
            flushed = await completions(right, 2)
            assert [(c.wr_id, c.status) for c in flushed] == [(1, Status.FLUSHED), (2, Status.FLUSHED)]
            assert target.data == b"\x11" * 3000
            left.post_write_imm(here.qpn, 9, [source.whole()], remote_va=va, rkey=rkey, imm=1)
            assert [c.status for c in await completions(left, 1)] == [Status.FLUSHED]
            # Other queue pairs are untouched.
            assert await transfer(left, right, connect(left, right), noise(2000, 2)) == noise(2000, 2)

    async def test_destroying_a_queue_pair_flushes_it(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, there = connect(left, right)
            source, target = Buffer.on(left, noise(5000, 1)), Buffer.on(right, bytearray(5000))
            left.post_receive(here.qpn, 50)
            for wr_id in range(3):  # held up: no receive is posted
                left.post_write_imm(
                    here.qpn,
                    wr_id,
                    [source.whole()],
                    remote_va=target.region.va,
                    rkey=target.region.key,
                    imm=1,
                )
            left.destroy_qp(here.qpn)
            flushed = {(c.kind, c.wr_id) for c in await completions(left, 4) if c.status is Status.FLUSHED}
            assert flushed == {
                (CompletionKind.RECEIVE_IMM, 50),
                *((CompletionKind.SEND, wr_id) for wr_id in range(3)),
            }
            with pytest.raises(LocalMisuse):
                left.post_receive(here.qpn, 1)
            right.destroy_qp(there.qpn)
            assert await transfer(left, right, connect(left, right), noise(2000, 2)) == noise(2000, 2)

    async def test_destroying_a_queue_pair_leaves_completions_of_others_as_they_are(
        self, clock: object
    ) -> None:
        """Both of the left side are there, untaken: what the right side was told came after them."""
        async with self.running() as (left, right):
            here, there = connect(left, right)
            lone = left.create_qp(psn=0)
            left.post_receive(here.qpn, 1)
            right.post_receive(there.qpn, 2)
            left.post_write_imm(here.qpn, 3, [], remote_va=0, rkey=0, imm=4)
            assert [c.wr_id for c in await completions(right, 1)] == [2]
            right.post_write_imm(there.qpn, 5, [], remote_va=0, rkey=0, imm=6)
            assert [c.wr_id for c in await completions(right, 1)] == [5]
            left.destroy_qp(lone.qpn)
            assert sorted(c.wr_id for c in await completions(left, 2)) == [1, 3]
            assert left.poll() == []

    async def test_a_silent_peer_exhausts_the_retries(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, there = connect(left, right, QpAttributes(timeout=8, retry_count=2))
            source, target = Buffer.on(left, noise(5000, 1)), Buffer.on(right, bytearray(5000))
            right.destroy_qp(there.qpn)
            for wr_id in (1, 2):
                left.post_write_imm(
                    here.qpn,
                    wr_id,
                    [source.whole()],
                    remote_va=target.region.va,
                    rkey=target.region.key,
                    imm=1,
                )
            assert [c.status for c in await completions(left, 2)] == [
                Status.RETRY_EXCEEDED,
                Status.FLUSHED,
            ]
            assert left.statistics()["timeouts"] > 0

    async def test_a_peer_that_is_not_there_shows_in_the_completions(self, clock: object) -> None:
        """Connecting to it does not fail, nor does it wait: that nobody answers is found later."""
        async with self.running() as (left, right):
            here = left.create_qp(psn=5)
            nobody = _nobody(here)
            left.connect_qp(here.qpn, nobody, QpAttributes(timeout=8, retry_count=2))
            source = Buffer.on(left, noise(500, 1))
            left.post_receive(here.qpn, 1)
            for wr_id in (2, 3):
                left.post_write_imm(here.qpn, wr_id, [source.whole()], remote_va=0, rkey=0, imm=1)
            ended = {(c.kind, c.wr_id): c.status for c in await completions(left, 3)}
            assert ended == {
                (CompletionKind.SEND, 2): Status.RETRY_EXCEEDED,
                (CompletionKind.SEND, 3): Status.FLUSHED,
                (CompletionKind.RECEIVE_IMM, 1): Status.FLUSHED,
            }
            left.post_write_imm(here.qpn, 4, [source.whole()], remote_va=0, rkey=0, imm=1)
            left.post_receive(here.qpn, 5)
            assert {c.status for c in await completions(left, 2)} == {Status.FLUSHED}
            left.destroy_qp(here.qpn)
            assert await transfer(left, right, connect(left, right), noise(2000, 2)) == noise(2000, 2)

    async def test_nothing_is_sent_twice_to_who_is_connected(self, clock: object) -> None:
        """No timer would bring it again."""
        async with self.running() as (left, right):
            for turn in range(3):
                before = [nic.statistics() for nic in (left, right)]
                here, there = connect(left, right, QpAttributes(timeout=0))
                await left.wait_connected(here.qpn)
                await right.wait_connected(there.qpn)
                assert await transfer(left, right, (here, there), noise(9000, turn)) == noise(9000, turn)
                assert await transfer(right, left, (there, here), noise(9000, turn)) == noise(9000, turn)
                for nic, early in zip((left, right), before, strict=True):
                    late = nic.statistics()
                    assert [late[name] - early[name] for name in AGAIN] == [0] * len(AGAIN)

    async def test_waiting_for_a_peer_that_is_not_there_has_an_end(self, clock: object) -> None:
        """Connected as far as that takes nobody's answer, or refused in words."""
        async with self.running() as (left, _right):
            here = left.create_qp(psn=5)
            nobody = _nobody(here)
            left.connect_qp(here.qpn, nobody, QpAttributes(timeout=8, retry_count=2))
            refusal = await _refusal(left, here.qpn)
            assert refusal is None or str(ipaddress.ip_address(nobody.ip)) in refusal.peer

    async def test_what_was_not_to_be_connected_is_not_waited_for(self, clock: object) -> None:
        async with self.running() as (left, right):
            lone = left.create_qp(psn=5)
            with pytest.raises(LocalMisuse, match="not connected"):
                await left.wait_connected(lone.qpn)
            here, _there = connect(left, right)
            left.destroy_qp(here.qpn)
            with pytest.raises(LocalMisuse):
                await left.wait_connected(here.qpn)
            here, _there = connect(left, right)
            await left.aclose()
            with pytest.raises(PortClosed):
                await left.wait_connected(here.qpn)

    async def test_receives_exhaust_the_rnr_retries(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, _there = connect(left, right, QpAttributes(rnr_retry=2))
            source, target = Buffer.on(left, noise(500, 1)), Buffer.on(right, bytearray(500))
            left.post_write_imm(
                here.qpn,
                1,
                [source.whole()],
                remote_va=target.region.va,
                rkey=target.region.key,
                imm=1,
            )
            assert (await completions(left, 1))[0].status is Status.RNR_RETRY_EXCEEDED

    async def test_misuse_is_refused_and_changes_nothing(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, there = connect(left, right)
            source, target = Buffer.on(left, noise(500, 1)), Buffer.on(right, bytearray(500))
            lone = left.create_qp(psn=0)
            to_target = {"remote_va": target.region.va, "rkey": target.region.key, "imm": 1}
            outside = source.whole()._replace(nbytes=501)
            unknown = source.whole()._replace(key=source.region.key ^ 1)
            with pytest.raises(LocalMisuse, match="connected"):
                left.connect_qp(here.qpn, there, QpAttributes())
            for bad in (QpAttributes(mtu=1000), QpAttributes(mtu=1 << 20), QpAttributes(timeout=99)):
                with pytest.raises(LocalMisuse):
                    left.connect_qp(lone.qpn, there, bad)
            with pytest.raises(LocalMisuse, match="not connected"):
                left.post_write_imm(lone.qpn, 1, [source.whole()], **to_target)
            for segments in ([outside], [source.whole(), unknown]):
                with pytest.raises(LocalMisuse, match="region"):
                    left.post_write_imm(here.qpn, 1, segments, **to_target)
            for qpn in (here.qpn ^ lone.qpn ^ 0x555555, -1):
                with pytest.raises(LocalMisuse):
                    left.post_receive(qpn, 1)
                with pytest.raises(LocalMisuse):
                    left.destroy_qp(qpn)
            with pytest.raises(LocalMisuse):
                left.create_qp(psn=1 << 24)
            with pytest.raises(LocalMisuse):
                left.register_memory(memoryview(bytearray()))
            with pytest.raises(LocalMisuse):
                left.register_memory(memoryview(bytearray(100))[::2])
            left.deregister_memory(source.region)
            with pytest.raises(LocalMisuse):
                left.deregister_memory(source.region)
            assert left.poll() == []
            assert await transfer(left, right, (here, there), noise(2000, 2)) == noise(2000, 2)

    async def test_receives_may_be_posted_before_connecting(self, clock: object) -> None:
        async with self.running() as (left, right):
            here, there = left.create_qp(psn=1), right.create_qp(psn=2)
            right.post_receive(there.qpn, 77)
            right.connect_qp(there.qpn, here, QpAttributes())
            left.connect_qp(here.qpn, there, QpAttributes())
            left.post_write_imm(here.qpn, 1, [], remote_va=0, rkey=0, imm=3)
            assert [(c.wr_id, c.imm) for c in await completions(right, 1)] == [(77, 3)]

    async def test_closing_ends_run_and_every_wait(self, clock: object) -> None:
        with trio.fail_after(_GIVE_UP_S):
            async with self.pair() as (left, right), trio.open_nursery() as nursery:
                nursery.start_soon(right.run)

                async def expect_closed() -> None:
                    with pytest.raises(PortClosed):
                        await left.wait_completions()

                async with trio.open_nursery() as waiting:
                    waiting.start_soon(left.run)
                    waiting.start_soon(expect_closed)
                    await trio.testing.wait_all_tasks_blocked()
                    await left.aclose()
                with pytest.raises(PortClosed):
                    await left.wait_completions()
                nursery.cancel_scope.cancel()
