"""System calls and copies of a message that passes a port in shared memory, counted: exact on every machine.

What is said in ``test_data_path_counts`` holds here: each bound is the figure of the code as it is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.core.switch.accelerator import Accelerator, FramesArrived, InstallRing
from inaproto.daemon.switch.ports import PortBoard
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto_adapters.frames import ShmConfig, ShmPort
from inaproto_adapters.frames.shared_ring import LendingWriter, Written
from inaproto_hil.bench.traffic import Sender, host_mac, ring_spec
from tests.unit.counting import run_counted
from tests.unit.test_data_path_counts import COUNTED, MESSAGE_BYTES, RANKS, WARM_UP, Hosts


class Counted:
    """A port whose system calls are counted, and the bytes that it copies."""

    def __init__(self, port: ShmPort, order: list[str]) -> None:
        """``order``: what is done, in turn, by several."""
        self.port = port
        self.order = order
        self.reset()
        sock, writer = port._sock, port._writer
        assert writer is not None
        push = writer.push

        def pushed(blocks: Sequence[Frames]) -> Written:
            written = push(blocks)
            assert isinstance(writer, LendingWriter)
            self.built += sum(block.nbytes for block in blocks if np.shares_memory(block, writer.data))
            self.sent += written.nbytes
            order.append("push")
            return written

        writer.push = pushed  # type: ignore[method-assign]
        port._sock = _Socket(sock, self)  # type: ignore[assignment]

    def reset(self) -> None:
        self.bells = self.heard = self.sent = self.built = 0

    @property
    def copied(self) -> int:
        """Bytes; the others were built where they are sent from."""
        return self.sent - self.built


class _Socket:
    def __init__(self, sock: socket.socket, counted: Counted) -> None:
        self._sock, self._counted = sock, counted

    def send(self, data: bytes, flags: int) -> int:
        self._counted.bells += 1
        self._counted.order.append("bell")
        return self._sock.send(data, flags)

    def recv(self, nbytes: int) -> bytes:
        self._counted.heard += 1
        return self._sock.recv(nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def pair() -> tuple[ShmPort, ShmPort]:
    near, far = socket.socketpair()
    one = ShmPort(near, name="near", accepts=False)
    one.offer(ShmConfig())
    return one, ShmPort(far, name="far", accepts=True)


@pytest.fixture(autouse=True)
def _compiled(use_kernels: Callable[[str], None]) -> None:
    use_kernels("compiled")


def test_a_message_of_a_host() -> None:
    """With its acknowledgement: a bell for each, if the other side sleeps, and each bell is heard once."""

    async def rig() -> None:
        ports = pair()
        hosts = Hosts(ports, 1, MESSAGE_BYTES)
        async with trio.open_nursery() as nursery:
            for nic in hosts.nics:
                nursery.start_soon(nic.run)
            await wait_all_tasks_blocked()
            for _ in range(WARM_UP):
                await hosts.exchange()
            counts = [Counted(port, []) for port in ports]
            for _ in range(COUNTED):
                await hosts.exchange()
            messages = 2 * COUNTED
            assert sum(one.bells for one in counts) / messages <= 1.5
            assert sum(one.heard for one in counts) / messages <= 1.5
            assert sum(one.copied for one in counts) / messages <= 184_022
            for nic in hosts.nics:
                await nic.aclose()

    run_counted(rig)


def test_a_set_of_a_switch() -> None:
    """A bell is heard for each message that comes, one is rung for each result; no byte of it is copied."""

    async def rig() -> None:
        accelerator = Accelerator()
        board = PortBoard(accelerator.step, print, wrap_port=None, ports_max=8)
        ring = InstallRing(ring_spec(RANKS))
        senders = [Sender(ring.spec, rank, 0x1000 * rank + 1) for rank in range(RANKS)]
        pairs = [pair() for _ in range(RANKS)]
        async with trio.open_nursery() as nursery:
            for rank, (_, port) in enumerate(pairs):
                nursery.start_soon(board.serve, PortId(rank), port, f"port-{rank}")
            await wait_all_tasks_blocked()
            for rank in range(RANKS):
                hello = np.zeros((1, 60), np.uint8)
                hello[0, :6] = 0xFF
                hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
                accelerator.step(FramesArrived(PortId(rank), [hello]), Instant(0))
            assert accelerator.step(ring, Instant(0)) == []
            order: list[str] = []
            counts = [Counted(port, order) for _, port in pairs]
            results = 0
            for serial in range(WARM_UP + COUNTED):
                if serial == WARM_UP:
                    results = 0
                    order.clear()
                    for one in counts:
                        one.reset()
                data = np.full(MESSAGE_BYTES - INA_HEADER_BYTES, serial, np.uint8)
                for sender, (host, _) in zip(senders, pairs, strict=True):
                    assert host.send_blocks_nowait(sender.message(serial, data)) == 0
                    await wait_all_tasks_blocked()
                for host, _ in pairs:
                    reader = host._reader
                    assert reader is not None
                    while nbytes := reader.take()[2]:
                        results += nbytes
            assert sum(one.heard for one in counts) == RANKS * COUNTED
            assert sum(one.bells for one in counts) == RANKS * COUNTED
            assert order == (["push"] * RANKS + ["bell"] * RANKS) * COUNTED, "whoever is woken is in the way"
            assert sum(one.copied for one in counts) == 0
            assert sum(one.sent for one in counts) == results > RANKS * COUNTED * MESSAGE_BYTES
            for host, _ in pairs:
                await host.aclose()
            nursery.cancel_scope.cancel()

    run_counted(rig)
