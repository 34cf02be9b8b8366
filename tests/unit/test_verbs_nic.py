"""What a RoCE NIC does between calls of its device, judged without one: a stand-in for pyverbs."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.errors import FabricError, LocalMisuse
from inaproto.ports import CompletionKind, PortClosed, QpAddress, QpAttributes, Status
from inaproto_adapters.verbs import library, neighbours, nic
from inaproto_adapters.verbs.devices import Device

OWN = Device("rxe0", 1, b"\x0a\0\0\1", bytes(6), "eth1", 1, 1024)
PEER = QpAddress(bytes(6), b"\x0a\0\0\2", 77, 5)
ATTRIBUTES = QpAttributes(mtu=1024, timeout=14, retry_count=7)


class PyverbsError(Exception):
    pass


class Part:
    """Any object of pyverbs: it takes what it is given, and does what a queue pair of this device does."""

    qp_num = 17
    lkey = rkey = 1
    refuses: frozenset[str] = frozenset()
    completed: tuple[Any, ...] = ()

    def __init__(self, *given: Any, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        def verb(*given: Any) -> None:
            if name in Part.refuses:
                raise PyverbsError(f"Failed to {name}")

        return verb

    def query_device(self) -> SimpleNamespace:
        return SimpleNamespace(max_qp=8, max_qp_wr=64, max_sge=4, max_cqe=1024)

    def poll(self, most: int) -> tuple[int, tuple[Any, ...]]:
        found, Part.completed = Part.completed, ()
        return len(found), found


class Region(Part):
    serial = 0

    def __init__(self, *given: Any, **fields: Any) -> None:
        Region.serial += 1
        self.lkey = self.rkey = Region.serial


class Channel(Part):
    def __init__(self, *given: Any) -> None:
        self.fd, self._other = os.pipe()

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._other)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """pyverbs and the kernel's table of neighbours, which is returned, are stand-ins."""
    for name in ("pyverbs_error", "device", "pd", "cq", "wr", "mr", "qp", "addr"):
        module = ModuleType(f"pyverbs.{name}")
        module.__dict__["__getattr__"] = {
            "pyverbs_error": lambda _: PyverbsError,
            "mr": lambda _: Region,
        }.get(name, lambda wanted: Channel if wanted == "CompChannel" else Part)
        monkeypatch.setitem(sys.modules, f"pyverbs.{name}", module)
    monkeypatch.setitem(sys.modules, "pyverbs", ModuleType("pyverbs"))
    table = tmp_path / "arp"
    monkeypatch.setattr(neighbours.is_resolved, "__defaults__", (table,))
    monkeypatch.setattr(neighbours.resolve, "__defaults__", (table,))
    monkeypatch.setattr(Part, "refuses", frozenset())
    monkeypatch.setattr(Part, "completed", ())
    library.verbs.cache_clear()
    yield table
    library.verbs.cache_clear()


def answered(table: Path) -> None:
    """The peer's address is known now."""
    table.write_text("\n10.0.0.2 0x1 0x2 52:54:00:00:00:02 * eth1\n")


def opened() -> nic.VerbsNic:
    return nic.VerbsNic(OWN, nic.VerbsConfig())


async def test_a_queue_pair_that_goes_before_its_peer_is_asked_for(
    device: Path, autojump_clock: MockClock
) -> None:
    """A ring whose first receive is refused takes down what it has just connected."""
    made = opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        address = made.create_qp(psn=1)
        made.connect_qp(address.qpn, PEER, ATTRIBUTES)
        made.destroy_qp(address.qpn)
        await trio.sleep(2 * neighbours.WAIT_S)
        await made.aclose()


async def test_a_device_that_is_lost_refuses_to_connect(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = opened()
    monkeypatch.setattr(Part, "refuses", frozenset({"get_cq_event"}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        address = made.create_qp(psn=1)
        os.write(made._channel._other, b"x")
        await wait_all_tasks_blocked()
        with pytest.raises(FabricError, match="its completion channel"):
            made.connect_qp(address.qpn, PEER, ATTRIBUTES)
        await made.aclose()


async def test_what_the_device_says_of_a_queue_pair_that_has_failed(
    device: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the receive, and refused to connect half way: the receive has been told of as flushed."""
    made = opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        address = made.create_qp(psn=1)
        made.post_receive(address.qpn, 9)
        monkeypatch.setattr(Part, "refuses", frozenset({"to_rts"}))
        made.connect_qp(address.qpn, PEER, ATTRIBUTES)
        answered(device)
        [told] = await made.wait_completions()
        assert (told.kind, told.wr_id, told.status) == (CompletionKind.RECEIVE_IMM, 9, Status.FLUSHED)
        late = SimpleNamespace(status=0, qp_num=address.qpn, wr_id=1, imm_data=0, byte_len=4)
        monkeypatch.setattr(Part, "completed", (late,))
        assert made.poll() == []
        await made.aclose()


@asynccontextmanager
async def connecting() -> AsyncIterator[tuple[nic.VerbsNic, int, list[str]]]:
    """A queue pair that waits for its peer's address, and the list that gets how the wait for it ends."""
    made = opened()
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        qpn = made.create_qp(psn=1).qpn
        made.connect_qp(qpn, PEER, ATTRIBUTES)
        nursery.start_soon(_tell_end, made, qpn, told)
        await wait_all_tasks_blocked()
        assert told == []
        yield made, qpn, told
        await made.aclose()


async def _tell_end(made: nic.VerbsNic, qpn: int, told: list[str]) -> None:
    try:
        await made.wait_connected(qpn)
    except (FabricError, PortClosed, LocalMisuse) as error:
        told.append(str(error))
    else:
        told.append("connected")


async def test_connected_is_said_when_the_peer_has_answered(device: Path, autojump_clock: MockClock) -> None:
    async with connecting() as (_made, _qpn, told):
        await trio.sleep(neighbours.WAIT_S / 2)
        assert told == [], "what the peer sends now is dropped"
        answered(device)
        await trio.sleep(neighbours.WAIT_S / 2)
        assert told == ["connected"]


async def test_a_peer_that_does_not_answer_is_named_in_time(device: Path, autojump_clock: MockClock) -> None:
    async with connecting() as (made, qpn, told):
        await trio.sleep(neighbours.WAIT_S * 1.01)
        words = "connect with 10.0.0.2 failed while asking for its MAC address at eth1: no answer"
        assert told == [words]
        with pytest.raises(FabricError, match="asking for its MAC address"):
            await made.wait_connected(qpn)


END: dict[str, Callable[[nic.VerbsNic, int], None]] = {
    "it is destroyed": lambda made, qpn: made.destroy_qp(qpn),
    "the RoCE device rxe0: gone": lambda made, qpn: made._lose("gone"),
}


@pytest.mark.parametrize("words", END)
async def test_who_waits_to_be_connected_hears_that_it_is_in_vain(
    device: Path, autojump_clock: MockClock, words: str
) -> None:
    async with connecting() as (made, qpn, told):
        END[words](made, qpn)
        await wait_all_tasks_blocked()
        assert len(told) == 1
        assert words in told[0]


async def test_who_waits_to_be_connected_hears_that_nobody_serves_the_device(
    device: Path, autojump_clock: MockClock
) -> None:
    made = opened()
    told: list[str] = []
    qpn = made.create_qp(psn=1).qpn
    made.connect_qp(qpn, PEER, ATTRIBUTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_end, made, qpn, told)
        with trio.move_on_after(1):
            await made.run()
    assert told == ["the RoCE device rxe0: it does not run any more"]
    await made.aclose()


async def test_who_does_not_wait_any_longer_leaves_the_queue_pair_connecting(
    device: Path, autojump_clock: MockClock
) -> None:
    async with connecting() as (made, qpn, told):
        with trio.move_on_after(neighbours.WAIT_S / 2) as waited:
            await made.wait_connected(qpn)
        assert waited.cancelled_caught
        answered(device)
        await made.wait_connected(qpn)
        await wait_all_tasks_blocked()
        assert told == ["connected"]
