"""Whoever drives a host in a job: orders one by one, and what becomes of those that cannot be performed."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, Final

import pytest

from inaproto.core.host import events
from inaproto.core.host.driver import HostDriver
from inaproto.core.host.operations import BASE, INA, Operation, PostMessage, TakeResult, Woke
from inaproto.core.host.view import Phase
from inaproto.errors import FabricError, InvariantBroken, LocalMisuse, RankLost
from inaproto.units import Instant, MsgId, OpIndex
from inaproto.wire.control_messages import IntoAddress, OutAddress
from inaproto.wire.ina_header import Dtype, Op

SENDS = PostMessage(MsgId(0), 0, b"", OpIndex(0), 0, 8)
TAKES = TakeResult(0, OpIndex(0), 0, 8)
ENGINE, TENSORS, NIC = object(), object(), object()
OUT = OutAddress(mac=bytes(6), ip=bytes(4), qpn=17, psn=0)
INTO = IntoAddress(mac=bytes(6), ip=bytes(4), qpn=18, psn=0, va=0, rkey=1, slots=4, slot_bytes=768)
OPENS = events.OpenLinks(events.LinkShape(4, 768))
OPENED = events.LinksOpened(events.LinkAddresses(OUT, INTO))
TREE = events.ConnectTree(None, (INTO,))
LINKS = {path: events.ConnectLink(path, INTO, OUT) for path in (BASE, INA)}
CLOSES, NOTED, LOG = events.CloseLinks(), events.Noted("rare"), events.Log("warning")
OPERATION = Operation(OpIndex(3), Dtype.F32, Op.SUM, 8, 1)
Faults = dict[object, Exception]


def refused(cause: str) -> FabricError:
    return FabricError("send", "h1", "posting", cause, retryable=False)


WRITTEN: Final = "the journal is written"


def stub(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Driver(HostDriver):
    """Its core orders what it is told to; what cannot be performed raises what ``faults`` says."""

    def __init__(self, orders: list[Any], faults: Faults | None = None) -> None:
        super().__init__(lambda: Instant(7))
        self.heard: list[object] = []
        self.done: list[object] = []
        self.slices: list[Any] = []
        """That are left to be handed out, or why none can be."""
        self.ended: deque[Operation] = deque()
        """Sums that all ranks have."""
        self._orders, self._faults = orders, faults or {}
        self.stub = stub(
            step=self._core_step, engine=ENGINE, phase=Phase.RUNNING, deadline=Instant(9), has_ended=False
        )
        self.held = stub(
            tensors=None,
            begin=lambda: None,
            perform=self._do,
            on_links=self._do,
            sum=self._do,
            open=self._opened,
            close_all=lambda: self._do("all closed"),
            take_slice=self._slice,
            added=self.done.append,
            take_sum=lambda: self.ended.popleft() if self.ended else None,
            event_of=lambda completion: completion,
            events_of=list,
            links={BASE: None},
            write_facts=lambda **begins: self.done.append(WRITTEN),
            write_end=lambda error=None: self.done.append(error or "over"),
        )
        self.begin(self.stub, self.held)

    def _core_step(self, event: Any, now: Instant) -> list[Any]:
        assert now == 7
        self.heard.append(event)
        if event in self._faults:
            raise self._faults[event]
        return self._orders if event == Woke() else []

    def _do(self, order: object) -> None:
        if order in self._faults:
            raise self._faults[order]
        self.done.append(order)

    def _opened(self, order: Any, nic: object) -> Any:
        assert nic is NIC
        self._do(order)
        return OPENED

    def _slice(self) -> Any:
        part = self.slices.pop(0)
        if isinstance(part, Exception):
            raise part
        return part

    def _perform(self, action: Any) -> None:
        self._do(action)

    def _nic_for(self, order: events.OpenLinks) -> Any:
        return NIC

    def _tensors(self) -> Any:
        return TENSORS

    def _begin_connecting(self, path: Any) -> None:
        self.done.append(path)

    def _closing(self, order: Any) -> None:
        self.done.append("closing")


ERROR = RankLost("rank 1 is lost")
REFUSED, OURS = refused("queue full"), InvariantBroken("cannot be")


@pytest.mark.parametrize(
    ("orders", "faults", "done", "heard"),
    [
        ([SENDS, NOTED, TAKES], {}, [SENDS, NOTED, TAKES], []),
        ([SENDS, TAKES, NOTED], {SENDS: REFUSED}, [TAKES, NOTED], [events.NicRefused(str(REFUSED))]),
        (
            [TAKES, SENDS, LOG, NOTED],
            {TAKES: REFUSED, LOG: refused("later")},
            [NOTED],
            [events.NicRefused(str(REFUSED))],
        ),
        (
            [SENDS, TAKES, NOTED, LOG, CLOSES],
            {SENDS: OURS},
            [LOG, "closing", CLOSES],
            [events.Faulted("cannot be")],
        ),
        ([SENDS, TAKES], {SENDS: REFUSED, TAKES: OURS}, [], [events.Faulted("cannot be")]),
        ([OPENS], {}, [OPENS], [OPENED]),
        (
            [OPENS, NOTED],
            {OPENS: OSError("no memory")},
            ["all closed", NOTED],
            [events.LinksRefused("no memory")],
        ),
        ([TREE], {}, [WRITTEN, TREE, BASE], []),
        ([LINKS[INA]], {}, [WRITTEN, LINKS[INA], INA], []),
        ([LINKS[BASE]], {}, [WRITTEN, LINKS[BASE], BASE], []),
        (
            [TREE, NOTED],
            {TREE: ValueError("no address")},
            [WRITTEN, NOTED],
            [events.LinkUnusable("no address")],
        ),
        ([events.RanksBegun(4)], {}, [WRITTEN, events.RanksBegun(4)], []),
        ([events.RankFailed(1, ERROR)], {}, [ERROR, events.RankFailed(1, ERROR)], []),
        ([events.Ended()], {}, ["over", events.Ended()], []),
        ([events.SumLocally(OPERATION)], {}, [events.SumLocally(OPERATION)], []),
    ],
)
def test_what_becomes_of_orders(orders: list[Any], faults: Faults, done: list[Any], heard: list[Any]) -> None:
    driver = Driver(orders, faults)
    driver.feed(Woke())
    assert driver.done == done
    assert driver.heard == [Woke(), *heard]
    assert driver.held.tensors is TENSORS
    assert driver.deadline == 9


def test_a_fault_of_the_core_ends_its_job_and_one_while_it_ends_is_raised() -> None:
    driver = Driver([], {Woke(): LocalMisuse("not now")})
    driver.feed(Woke())
    assert driver.heard == [Woke(), events.Faulted("not now")]
    with pytest.raises(InvariantBroken):
        Driver([], {Woke(): OURS, events.Faulted("cannot be"): OURS}).feed(Woke())


def test_a_host_without_rings_has_no_tensors_and_what_it_is_told_of_links_given_back_counts_nothing() -> None:
    driver = Driver([NOTED])
    driver.stub.engine = None
    driver.completed(None)  # type: ignore[arg-type]
    assert driver.heard == []
    driver.completed(Woke())  # type: ignore[arg-type]
    assert (driver.heard, driver.done, driver.held.tensors) == ([Woke()], [NOTED], None)


PART: Any = "a slice"
SUMMED = events.SummedLocally(OpIndex(3))


@pytest.mark.parametrize(
    ("handed_out", "taken", "heard"),
    [
        (None, None, []),
        (PART, PART, []),
        (LocalMisuse("too long"), None, [events.Faulted("too long")]),
    ],
)
def test_slices_are_handed_out_of_sums_of_one_host(handed_out: Any, taken: Any, heard: list[Any]) -> None:
    driver = Driver([])
    driver.slices.append(handed_out)
    assert driver.take_slice() is taken
    assert driver.heard == heard


def test_a_slice_that_was_added_may_be_the_last_of_its_sum_and_the_next_ones_be_empty() -> None:
    driver = Driver([])
    driver.added(PART)
    assert (driver.done, driver.heard) == ([PART], [])
    driver.ended.extend([OPERATION, OPERATION])
    driver.added(PART)
    assert (driver.done, driver.heard) == ([PART, PART], [SUMMED, SUMMED])


def test_a_slice_that_could_not_be_added_ends_its_job() -> None:
    driver = Driver([])
    driver.added(PART, OURS)
    assert (driver.done, driver.heard) == ([], [events.Faulted("cannot be")])


def test_while_the_ring_does_not_run_none_is_handed_out_and_what_was_added_meanwhile_counts_later() -> None:
    driver = Driver([])
    driver.stub.phase = Phase.HALTED
    driver.slices.append(PART)
    driver.ended.append(OPERATION)
    assert driver.take_slice() is None
    driver.added(PART)
    assert (driver.done, driver.heard) == ([PART], [])
    driver.stub.phase = Phase.RUNNING
    assert driver.take_slice() is PART
    assert driver.heard == [SUMMED]


ARRIVED: Any = events.MessageArrived(BASE, -1, 5, 6, 7, b"")
FAILED: Any = events.ConnectionFailed(BASE, -1, False, None)  # type: ignore[arg-type]


def acknowledged(msg_id: int, path: Any = BASE, edge: int = -1) -> Any:
    return events.MessageAcknowledged(path, edge, msg_id)


def test_what_is_completed_together_is_one_step() -> None:
    driver = Driver([])
    driver.completed_all([acknowledged(0), ARRIVED, FAILED])
    driver.completed_all([ARRIVED, FAILED])
    bundles = (acknowledged(0), ARRIVED, FAILED), (ARRIVED, FAILED)
    assert driver.heard == [events.Completed(bundle) for bundle in bundles]


def test_nothing_that_is_completed_is_no_step() -> None:
    driver = Driver([])
    driver.completed_all([])
    assert driver.heard == []


def test_of_two_rings_each_completion_is_a_step() -> None:
    driver = Driver([])
    driver.held.links = {BASE: None, INA: None}
    driver.completed_all([acknowledged(0), ARRIVED, acknowledged(1)])
    assert driver.heard == [acknowledged(0), ARRIVED, acknowledged(1)]


@pytest.mark.parametrize("event", [ARRIVED, acknowledged(3)])
def test_one_thing_that_happens_needs_no_bundle(event: Any) -> None:
    driver = Driver([])
    driver.completed_all([event])
    assert driver.heard == [event]
