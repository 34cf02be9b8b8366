"""Two jobs in one accelerator under load: one leaves, a third takes its place, and the other does not notice.

A ring is drained before it is removed (docs/protocol.md 6.8): its hosts send nothing new, but resend what is
unfinished until it is answered. What the accelerator sends for each job is compared with what it sends for
that job alone, in slots that nobody had before (NetReduce sections 3.1, 3.2).
"""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Final

import trio
from trio.testing import MockClock

from inaproto.errors import FabricError
from inaproto_adapters.fpga.at_once import AtOnceBus, at_once
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_hil.rtl.equivalence.compare import flow_of
from inaproto_hil.rtl.equivalence.device import Output
from inaproto_hil.rtl.equivalence.rings import Host, Ring
from inaproto_hil.rtl.equivalence.rtl_device import RtlDevice
from inaproto_hil.rtl.equivalence.steps import Arrival
from inaproto_hil.rtl.equivalence.traffic import PATIENCE
from inaproto_hil.rtl.verilated.model import Model
from tests.rtl.builds import SMALL, library

pytestmark = pytest.mark.rtl

LOST: Final = 0.08
TICK_S: Final = 0.00037
"""Between frames; no multiple of it is one of the time between two looks of a drain."""
CYCLES_MAX: Final = 150
"""That pass at once: most frames take longer, so that orders come amid them."""
LINGER_S: Final = 0.1


class Job:
    """A ring's hosts, and the accelerator that has no other ring."""

    def __init__(self, seed: int, number: int, ranks: int, message_packets: int) -> None:
        self.rng = Random(f"{seed}/{number}")
        hosts = [
            Host(rank, bytes([2, 0, 0, 0, number, rank]), bytes([10, 0, number, rank]))
            for rank in range(ranks)
        ]
        self.ring = Ring(self.rng, number, hosts, (2, message_packets, SMALL.mtu), 0)
        self.spec = self.ring.spec
        self._of = {
            a + b + qp.to_bytes(3, "big"): sender
            for sender in self.ring.senders
            for a, b, qp in [sender.connection]
        }
        self._alone = RtlDevice(library(SMALL), SMALL)
        assert self._alone.install(self.spec) is None
        self.expected: defaultdict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        """What leaves by which port, and for which flow, if the ring is alone."""
        self.got: defaultdict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        self.end: int | None = None
        """No packet from this one on is sent."""
        self.silent: set[int] = set()
        """Ranks that send nothing."""
        self.is_late = False
        """What is under way is nothing but copies of what was sent before."""
        self._sent: list[Arrival] = []

    def stop(self) -> None:
        """Send nothing new: what one rank has sent is the last."""
        self.end = max(sender.high for sender in self.ring.senders)

    @property
    def answered(self) -> int:
        """Results that all have."""
        return min(sender.expected for sender in self.ring.senders)

    def next_frame(self) -> Arrival | None:
        if self.is_late:
            return self.rng.choice(self._sent)
        sender = self.rng.choice(self.ring.senders)
        if sender.rank in self.silent:
            return None
        sender.idle += 1
        if sender.idle > PATIENCE:
            sender.idle, sender.next = 0, min(sender.expected, sender.next)
        if sender.next == self.end or not sender.may_send():
            return None
        index = sender.next
        sender.next += 1
        sender.high = max(sender.high, sender.next)
        arrival = sender.host.port, sender.frame(index)
        self._sent.append(arrival)
        return arrival if self.rng.random() >= LOST else None

    def comes(self, arrival: Arrival) -> None:
        """What the accelerator does with it if the ring is alone."""
        if not self.is_late:
            for port, frame in self._alone.frame(*arrival):
                self.expected[port, flow_of(frame)].append(frame)

    def leaves(self, port: int, frame: bytes) -> bool:
        """Whether the frame is of this job; its receiver hears of it."""
        sender = self._of.get(frame[26:34] + frame[47:50])
        if sender is None:
            return False
        self.got[port, flow_of(frame)].append(frame)
        if port == sender.receiver.port and self.rng.random() >= LOST:
            missing = sender.receive(int.from_bytes(frame[51:54], "big"))
            if missing is not None:
                sender.next = min(sender.next, missing)
        return True


class Bench:
    """Jobs in one accelerator. Of each job one frame at most is under way, so that their order is known."""

    def __init__(self, seed: int) -> None:
        self._seed, self._rng = seed, Random(seed)
        self._model = Model(library(SMALL), SMALL)
        self.device = at_once(FpgaDevice.identify(AtOnceBus(self._model)))
        at_once(self.device.set_ports_up(range(SMALL.ports)))
        self.jobs: list[Job] = []
        self._under_way: set[int] = set()

    def start(self, ranks: int, message_packets: int) -> Job:
        job = Job(self._seed, len(self.jobs), ranks, message_packets)
        placed = at_once(self.device.install(job.spec))
        assert placed == self.device.rings[job.spec.ring_id]
        self.jobs.append(job)
        return job

    async def load(self) -> None:
        """Until it is cancelled."""
        while True:
            at = self._rng.randrange(len(self.jobs))
            arrival = self.jobs[at].next_frame()
            if arrival is not None:
                if at in self._under_way:
                    self.settle()
                self._under_way.add(at)
                self.jobs[at].comes(arrival)
                self._model.send(*arrival)
            self._take(self._model.clock(self._rng.randrange(CYCLES_MAX)))
            await trio.sleep(TICK_S)

    def settle(self) -> None:
        """Nothing is under way."""
        self._take(self._model.run())
        self._under_way.clear()

    def _take(self, out: Output) -> None:
        for port, frame in out:
            assert any(job.leaves(port, frame) for job in self.jobs)

    def partly(self, job: Job) -> int:
        """Slots of the job that are partly filled."""
        return at_once(self.device.state(job.spec.ring_id)).in_flight

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  it is looked at after each frame
            await trio.sleep(TICK_S)

    def check(self) -> None:
        """Each job got what it would have got alone, and nothing else."""
        self.settle()
        for job in self.jobs:
            assert job.got == job.expected


@pytest.mark.parametrize("seed", range(8))
async def test_a_ring_leaves_and_another_takes_its_place_and_the_one_beside_does_not_notice(
    seed: int, autojump_clock: MockClock
) -> None:
    bench = Bench(seed)
    going, leaving = bench.start(3, 4), bench.start(2, 8)
    leaving_id, place = leaving.spec.ring_id, bench.device.rings[leaving.spec.ring_id]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.load)
        await trio.sleep(Random(seed).uniform(0.03, 0.2))
        await bench.until(lambda: bench.partly(leaving) > 0)
        leaving.stop()
        await bench.device.drain(leaving_id, timeout=60)
        assert bench.partly(leaving) == 0
        await bench.until(lambda: leaving.answered == leaving.end)  # results that were lost come again
        await bench.device.drain(leaving_id, timeout=60)
        before = going.answered

        bench.settle()
        leaving.is_late = True
        with trio.move_on_after(LINGER_S / 2):
            await bench.device.stop(leaving_id)
            await trio.sleep_forever()
        bench.check()
        assert at_once(bench.device.counters())["ring removed"] > 10
        leaving.is_late, leaving.silent = False, {0, 1}
        await bench.device.remove(leaving_id)

        coming = bench.start(3, 5)
        here = bench.device.rings[coming.spec.ring_id]
        assert (here.ring, here.base) == (place.ring, place.base)
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    bench.check()
    assert going.answered > before > 0
    assert coming.answered > 0


@pytest.mark.parametrize("seed", range(4))
async def test_a_drain_whose_hosts_do_not_stop_says_how_many_slots_wait_and_changes_nothing(
    seed: int, autojump_clock: MockClock
) -> None:
    bench = Bench(seed)
    going, staying = bench.start(3, 4), bench.start(2, 8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.load)
        await trio.sleep(0.05)
        await bench.until(lambda: bench.partly(staying) > 0)
        staying.silent = {0}  # whose packets the others wait for
        await trio.sleep(0.05)
        rings, partly = bench.device.rings, bench.partly(staying)
        with pytest.raises(FabricError, match=f"{partly} slots are partly filled after 0.3 s") as raised:
            await bench.device.drain(staying.spec.ring_id, timeout=0.3)
        assert raised.value.retryable
        assert bench.device.rings == rings
        before = [job.answered for job in (going, staying)]
        staying.silent = set()
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    bench.check()
    assert all(job.answered > had for job, had in zip((going, staying), before, strict=True))
