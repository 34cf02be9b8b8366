"""What a host in a job holds of a NIC: which link an order is for, what an end of a work request means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inaproto.core.host import events
from inaproto.core.host.engines.host_tree import Came, Fold, OverlayEngine, PostDown
from inaproto.core.host.engines.hosts import Combine, Place, PostSlot
from inaproto.core.host.engines.two_paths import OnPath
from inaproto.core.host.events import LinkShape, OpenLinks, PostReceive, PostReceives
from inaproto.core.host.holdings import Holdings
from inaproto.core.host.link import Link, RingLink, TreeLink
from inaproto.core.host.operation_queue import KeptResult, Source
from inaproto.core.host.operations import (
    BASE,
    INA,
    UP,
    BoundPath,
    Operation,
    PostKept,
    PostMessage,
    TakeResult,
)
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rdma.verbs import Completion, CompletionKind, QpAttributes, Segment, Status
from inaproto.errors import FabricError, InvariantBroken, LocalMisuse
from inaproto.units import MsgId, OpIndex, RingId
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from tests.unit.ideal_ring import ring_config
from tests.unit.listing_nic import ListingNic, address, into_address, out_address

NBYTES = 32
SLOT_BYTES = INA_HEADER_BYTES + NBYTES
RING, SMALL = LinkShape(4, SLOT_BYTES), LinkShape(2, SLOT_BYTES)
TREE = LinkShape(3, SLOT_BYTES, children=2)
ATTRIBUTES = QpAttributes(mtu=512)
OPERATION = Operation(OpIndex(0), Dtype.I32, Op.SUM, 2 * NBYTES, 1)
HEADER = bytes(range(INA_HEADER_BYTES))
INTO, OUT = into_address(7, 71, slot_bytes=SLOT_BYTES), out_address(8, 81)
CONNECT = events.ConnectLink(BASE, INTO, OUT)
CONNECT_INA = events.ConnectLink(INA, into_address(9, 91, slots=2, slot_bytes=SLOT_BYTES), OUT)
CONNECT_TREE = events.ConnectTree(
    into_address(7, 71, slots=3, slot_bytes=SLOT_BYTES),
    tuple(into_address(20 + i, i, va=0x50000 << i, slots=3, slot_bytes=SLOT_BYTES) for i in (0, 1)),
)
OWN = np.arange(100, 116, dtype=np.int32)
SENDS = PostMessage(MsgId(5), 1, HEADER, OpIndex(0), 8, 12)
RECEIVED = CompletionKind.RECEIVE_IMM


class Tensors:
    """Operation 0 of one rank: ``OWN``."""

    ranks = 1

    def __init__(self, nic: ListingNic) -> None:
        self.tensor = memoryview(bytearray(OWN.tobytes()))
        self._region = nic.register_memory(self.tensor)

    def views(self, op_index: int, offset: int, nbytes: int) -> Sequence[memoryview]:
        assert op_index == 0
        return [self.tensor[offset : offset + nbytes]]

    def operation(self, op_index: int) -> Operation:
        raise AssertionError("no journal asks")

    def payload(self, op_index: int, offset: int, nbytes: int) -> Segment:
        assert op_index == 0
        return Segment(self._region.key, self._region.va + offset, nbytes)


def stub(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Held:
    """Holdings of a host that is second in its ring, or the root of its tree, with links in ``nic``."""

    def __init__(
        self, base: LinkShape | None = RING, ina: LinkShape | None = None, nic: ListingNic | None = None
    ) -> None:
        tree = OverlayTree(ReductionPlan.flat(3), 2)
        self.path_mtu = ATTRIBUTES.mtu
        self.job = stub(
            accumulators=Accumulators(ReductionPlan.flat(2)),
            ring=stub(position=1, mtu=0),
            config=stub(mtu_of=lambda ring: ring.mtu or self.path_mtu),
            engine=OverlayEngine(ring_config(tree.root, 3), tree),
            ranks=range(2),
            done_path="switch",
        )
        self.nic, self._psn = nic or ListingNic(), 500
        self.of = Holdings(
            self.job, allocate=self.allocate, first_psn=self.psn, attributes=ATTRIBUTES, slice_bytes=128
        )
        assert self.of.tensors is None
        self.of.tensors = Tensors(self.nic)
        if base is not None:
            self.opened = self.of.open(OpenLinks(base, ina), self.nic)
            self.of.on_links(CONNECT if base.children is None else CONNECT_TREE)
            if ina is not None:
                self.of.on_links(CONNECT_INA)

    def allocate(self, nbytes: int) -> memoryview:
        return memoryview(bytearray(nbytes))

    def psn(self) -> int:
        self._psn += 1
        return self._psn

    def comes(self, path: BoundPath, slot: int, number: int, *, area: int = 0) -> None:
        """A message into that receive slot: eight times ``number``."""
        link = self.of.links[path]
        into = (link.into, *link.below)[area]
        payload = np.full(8, number, np.int32).tobytes()
        self.nic.write(into.rkey, into.va + slot * SLOT_BYTES, HEADER + payload)

    def sent(self) -> list[tuple[int, int, bytes]]:
        """By queue pair: message and payload."""
        return [(write.qpn, write.wr_id, write.data[1]) for write in self.nic.sent()]

    def tensor(self) -> list[int]:
        assert isinstance(self.of.tensors, Tensors)
        return [int(element) for element in np.frombuffer(self.of.tensors.tensor, np.int32)]


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


# --- links that are made and given back


def test_links_are_made_in_their_shape_and_peers_hear_of_them() -> None:
    held = Held(RING, SMALL)
    base, ina = held.of.links[BASE], held.of.links[INA]
    assert list(held.of.links) == [BASE, INA]
    assert isinstance(base, RingLink)
    assert isinstance(ina, RingLink)
    assert [(link.slots, link.slot_bytes) for link in (base, ina)] == [(4, SLOT_BYTES), (2, SLOT_BYTES)]
    shown = [events.LinkAddresses(link.out, link.into) for link in (base, ina)]
    assert held.opened == events.LinksOpened(*shown)
    assert [base.out.psn, base.into.psn, ina.out.psn, ina.into.psn] == [501, 502, 503, 504]
    one, two = (ATTRIBUTES.for_messages(messages, SLOT_BYTES) for messages in (1, 2))
    assert held.nic.told[-1] == (ina.out.qpn, (address(9, 91), one))
    assert (100, (address(7, 71), two)) in held.nic.told


def test_both_queue_pairs_of_a_ring_send_from_its_port() -> None:
    held = Held(None)
    held.of.open(OpenLinks(RING), held.nic)
    held.of.on_links(replace(CONNECT, udp_source_port=0xFFC2))
    told = [one for _, one in held.nic.told if isinstance(one, tuple)]
    assert [attributes.udp_source_port for _, attributes in told] == [0xFFC2, 0xFFC2]


@pytest.mark.parametrize(("named", "has"), [(0, 256), (512, 512)])
def test_queue_pairs_have_the_mtu_of_their_ring_or_of_the_path_as_it_is_now(named: int, has: int) -> None:
    """Of the path, where a switch of another release names none: messages have that, too."""
    held = Held(None)
    held.path_mtu, held.job.ring.mtu = 256, named
    held.of.open(OpenLinks(RING), held.nic)
    held.of.on_links(CONNECT)
    told = [one for _, one in held.nic.told if isinstance(one, tuple)]
    assert [attributes.mtu for _, attributes in told] == [has, has]


def test_a_link_of_a_tree_has_a_queue_pair_for_each_neighbour() -> None:
    held = Held(TREE)
    link = held.of.links[BASE]
    assert isinstance(link, TreeLink)
    assert (link.slots, link.slot_bytes, len(link.below), link.out.psn) == (3, SLOT_BYTES, 2, 501)
    assert held.opened == events.LinksOpened(events.LinkAddresses(link.out, link.into, link.below))
    assert link.connecting == list(link.qpns)
    assert held.nic.told[-1] == (102, (address(21, 1), ATTRIBUTES.for_messages(3, SLOT_BYTES)))


def test_links_that_are_made_anew_take_the_place_of_those_before() -> None:
    held = Held(nic=ListingNic(qps_max=2))
    before = held.of.links[BASE]
    held.of.open(OpenLinks(RING), held.nic)
    assert (before.is_open, held.nic.qpns) == (False, [102, 103])
    assert held.of.event_of(Completion(100, RECEIVED, 0, Status.SUCCESS)) is None


@pytest.mark.parametrize(("room", "left"), [({"qps_max": 3}, 1), ({"regions_max": 4}, 1)])
def test_where_there_is_no_room_for_one_link_none_is_held(room: dict[str, int], left: int) -> None:
    held = Held(None, nic=ListingNic(**room))
    with pytest.raises(LocalMisuse, match="no more"):
        held.of.open(OpenLinks(RING, SMALL), held.nic)
    assert (held.of.links, held.nic.qpns, len(held.nic.memory)) == ({}, [], left)


def test_all_links_are_given_back_also_those_behind_one_that_cannot_be() -> None:
    class Failing(ListingNic):
        def destroy_qp(self, qpn: int) -> None:
            super().destroy_qp(qpn)
            order.append(qpn)
            if qpn == 101:
                raise FabricError("destroy", "h1", "closing", "stuck", retryable=False)

    order: list[int] = []
    held = Held(None, nic=Failing())
    held.of.open(OpenLinks(RING, SMALL), held.nic)
    with pytest.raises(FabricError, match="stuck"):
        held.of.on_links(events.CloseLinks())
    assert (held.of.links, order) == ({}, [101, 100, 103, 102])


def test_the_second_link_is_given_back_alone() -> None:
    held = Held(RING, SMALL)
    both, closes = list(held.of.links.values()), events.CloseLinks()
    kept = events.KeepResults((), 0, None)
    expected: list[tuple[Any, list[Link]]] = [(closes, both), (events.CloseIna(), both[1:]), (kept, [])]
    assert [(order, held.of.closed_by(order)) for order, _ in expected] == expected
    held.of.on_links(events.CloseIna())
    assert (list(held.of.links), [link.is_open for link in both]) == ([BASE], [True, False])
    assert held.nic.qpns == [100, 101]
    held.of.on_links(closes)
    assert (held.of.links, held.nic.qpns) == ({}, [])


@pytest.mark.parametrize(
    ("shape", "order", "text"),
    [
        (TREE, CONNECT, "a ring for queue pairs of a tree"),
        (RING, CONNECT_TREE, "a tree for queue pairs of a ring"),
    ],
)
def test_a_link_is_connected_as_what_it_is(shape: LinkShape, order: Any, text: str) -> None:
    held = Held(shape)
    with pytest.raises(LocalMisuse, match=exactly(text)):
        held.of.on_links(order)


# --- what the end of a work request means


@pytest.mark.parametrize(("path", "qpns"), [(BASE, (100, 101)), (INA, (102, 103))])
def test_the_end_of_a_work_request_is_of_the_link_that_has_its_queue_pair(
    path: BoundPath, qpns: tuple[int, int]
) -> None:
    held = Held(RING, SMALL)
    held.comes(path, 1, 3)
    said = held.of.event_of(Completion(qpns[0], CompletionKind.SEND, 7, Status.SUCCESS))
    assert said == events.MessageAcknowledged(path, UP, 7)
    came = held.of.event_of(Completion(qpns[1], RECEIVED, 2, Status.SUCCESS, 5, SLOT_BYTES))
    assert came == events.MessageArrived(path, UP, 2, 5, SLOT_BYTES, HEADER)
    for qpn in qpns:
        failed = Completion(qpn, CompletionKind.SEND, 7, Status.RETRY_EXCEEDED)
        assert held.of.event_of(failed) == events.ConnectionFailed(path, UP, qpn == qpns[0], failed)


def test_in_a_tree_it_is_said_of_which_connection() -> None:
    held = Held(TREE)
    held.comes(BASE, 2, 3, area=2)
    came = held.of.event_of(Completion(102, RECEIVED, 1, Status.SUCCESS, 4, 50))
    assert came == events.MessageArrived(BASE, 1, 1, 4, 50, HEADER)
    said = held.of.event_of(Completion(101, CompletionKind.SEND, 7, Status.SUCCESS))
    assert said == events.MessageAcknowledged(BASE, 0, 7)
    failed = Completion(102, RECEIVED, 7, Status.FLUSHED)
    assert held.of.event_of(failed) == events.ConnectionFailed(BASE, 1, False, failed)


def test_of_a_link_that_was_given_back_nothing_is_said() -> None:
    held = Held(RING, SMALL)
    held.of.on_links(events.CloseIna())
    found = [held.of.event_of(Completion(qpn, RECEIVED, 0, Status.SUCCESS)) for qpn in (101, 103)]
    assert [event is None for event in found] == [False, True]
    held.of.close_all()
    assert held.of.event_of(Completion(101, RECEIVED, 0, Status.SUCCESS)) is None


def test_what_is_completed_together_is_told_by_connection_and_failures_last() -> None:
    held = Held(TREE)
    for area, slot in ((1, 2), (2, 2), (2, 0)):
        held.comes(BASE, slot, 3, area=area)
    failed = Completion(100, CompletionKind.SEND, 7, Status.RETRY_EXCEEDED)
    found = held.of.events_of(
        [
            Completion(102, RECEIVED, 1, Status.SUCCESS, 4, 50),
            failed,
            Completion(101, CompletionKind.SEND, 3, Status.SUCCESS),
            Completion(99, RECEIVED, 1, Status.SUCCESS, 4, 50),
            Completion(101, RECEIVED, 2, Status.SUCCESS, 4, 60),
            Completion(102, RECEIVED, 5, Status.SUCCESS, 6, 39),
            Completion(101, CompletionKind.SEND, 4, Status.SUCCESS),
        ]
    )
    assert found == [
        events.Exchanged(BASE, 1, (), (1, 5), ((4, 50, HEADER), (6, 39, HEADER[:39]))),
        events.Exchanged(BASE, 0, (3, 4), (2,), ((4, 60, HEADER),)),
        events.ConnectionFailed(BASE, UP, True, failed),
    ]
    assert held.of.events_of([Completion(99, RECEIVED, 1, Status.SUCCESS, 4, 50)]) == []
    assert held.of.events_of([]) == []


def test_both_queue_pairs_of_a_ring_are_one_connection() -> None:
    held = Held()
    held.comes(BASE, 1, 3)
    came = Completion(101, RECEIVED, 2, Status.SUCCESS, 5, SLOT_BYTES)
    found = held.of.events_of([came, Completion(100, CompletionKind.SEND, 7, Status.SUCCESS)])
    assert found == [events.Exchanged(BASE, UP, (7,), (2,), ((5, SLOT_BYTES, HEADER),))]


# --- orders of engines


def test_orders_are_for_the_base_link_until_another_is_named() -> None:
    held = Held(RING, SMALL)
    tensor = OWN.tobytes()[8:20]
    for order in (SENDS, OnPath(INA), SENDS, OnPath(BASE), SENDS, OnPath(INA)):
        held.of.perform(order)
    held.of.begin()
    held.of.perform(SENDS)
    assert held.sent() == [(qpn, 5, tensor) for qpn in (100, 102, 100, 100)]


def test_a_result_is_taken_from_the_slot_of_the_link_that_it_came_by() -> None:
    held = Held(RING, SMALL)
    held.comes(BASE, 1, 3)
    held.comes(INA, 1, 4)
    held.of.perform(TakeResult(1, OpIndex(0), NBYTES, NBYTES))
    assert held.tensor() == [*OWN[:8], *[3] * 8]
    held.of.perform(OnPath(INA))
    held.of.perform(TakeResult(1, OpIndex(0), 0, NBYTES))
    assert held.tensor() == [4] * 8 + [3] * 8


def test_a_receive_is_posted_where_it_was_and_nowhere_when_its_link_is_gone() -> None:
    held = Held(RING, SMALL)
    held.of.perform(PostReceive(INA, UP, 3))
    assert held.nic.told[-1] == (103, 3)
    held.of.on_links(events.CloseIna())
    held.of.perform(PostReceive(INA, UP, 4))
    held.of.perform(PostReceive(BASE, UP, 5))
    assert held.nic.told[-2:] == [(103, 3), (101, 5)]
    tree = Held(TREE)
    tree.of.perform(PostReceive(BASE, 1, 6))
    assert tree.nic.told[-1] == (102, 6)


def test_several_receives_are_posted_to_the_queue_pair_of_their_connection() -> None:
    held, tree = Held(RING, SMALL), Held(TREE)
    held.of.perform(PostReceives(INA, UP, (3, 4)))
    assert held.nic.told[-2:] == [(103, 3), (103, 4)]
    held.of.perform(PostReceives(BASE, UP, (5,)))
    assert held.nic.told[-1] == (101, 5)
    tree.of.perform(PostReceives(BASE, 1, (6, 7)))
    assert tree.nic.told[-2:] == [(102, 6), (102, 7)]
    held.of.on_links(events.CloseIna())
    before = list(held.nic.told)
    held.of.perform(PostReceives(INA, UP, (8,)))
    assert held.nic.told == before


def test_a_host_adds_what_has_come_to_its_own_part_and_passes_it_on() -> None:
    held = Held()
    held.comes(BASE, 1, 3)
    held.of.perform(Combine(1, NBYTES, Place.STAGED, 2, NBYTES, OPERATION, Source.OWN, NBYTES, NBYTES))
    held.of.perform(PostSlot(MsgId(6), 3, HEADER, Place.STAGED, 2, NBYTES))
    assert held.sent() == [(100, 6, (OWN[8:] + 3).tobytes())]


def test_a_host_in_a_tree_adds_what_its_children_have_sent_and_sends_the_sum_down() -> None:
    held = Held(TREE)
    held.comes(BASE, 1, 3, area=1)
    held.comes(BASE, 1, 50, area=2)
    came = (Came(0, 2, NBYTES), Came(1, 2, NBYTES))
    held.of.perform(Fold(came, Place.RECEIVED, 3, NBYTES, OPERATION, Source.OWN, 0, NBYTES))
    held.of.perform(PostDown(1, MsgId(3), 3, HEADER, 3, NBYTES))
    assert held.sent() == [(102, 3, (OWN[:8] + 53).tobytes())]
    held.of.on_links(events.KeepResults((KeptResult(0, OPERATION, False, 0, NBYTES, RingId(7), 3),), 0, None))
    held.of.perform(PostKept(MsgId(4), 0, HEADER, OpIndex(0), 0, NBYTES))
    assert held.sent()[1:] == [(100, 4, (OWN[:8] + 53).tobytes())]


def test_kept_results_outlive_the_links_in_whose_slots_they_were() -> None:
    held = Held(RING, SMALL)
    held.comes(BASE, 1, 3)
    held.comes(INA, 1, 4)

    def kept(serial: int, ring_id: int, offset: int) -> KeptResult:
        return KeptResult(serial, OPERATION, False, offset, NBYTES, RingId(ring_id), 1)

    held.of.on_links(events.KeepResults((kept(4, 7, 0), kept(5, 8, NBYTES)), 4, 8))
    held.of.on_links(events.CloseLinks())
    held.of.open(OpenLinks(RING), held.nic)
    held.of.on_links(CONNECT)
    held.comes(BASE, 1, 9)
    held.of.on_links(events.KeepResults((kept(4, 7, 0), kept(5, 8, NBYTES)), 6, None))
    for offset in (0, NBYTES):
        held.of.perform(PostKept(MsgId(offset), offset // NBYTES, HEADER, OpIndex(0), offset, NBYTES))
    held.of.on_links(events.KeepResults((kept(6, 7, 0),), 6, None))
    held.of.perform(PostKept(MsgId(9), 2, HEADER, OpIndex(0), 0, NBYTES))
    numbers = [np.frombuffer(data, np.int32).tolist() for _, _, data in held.sent()]
    assert numbers == [[3] * 8, [4] * 8, [9] * 8]


def test_orders_go_by_the_links_that_are_there_now() -> None:
    held = Held(RING, SMALL)
    for order in (SENDS, OnPath(INA), SENDS):
        held.of.perform(order)
    held.of.open(OpenLinks(RING, SMALL), held.nic)
    for connect in (CONNECT, CONNECT_INA):
        held.of.on_links(connect)
    for order in (SENDS, OnPath(INA), SENDS):
        held.of.perform(order)
    assert [write.qpn for write in held.nic.sent()] == [104, 106]


def test_what_is_ordered_after_the_links_were_given_back_goes_nowhere() -> None:
    held = Held()
    held.of.perform(SENDS)
    held.of.close_all()
    for order in (SENDS, PostReceive(BASE, UP, 1), OnPath(INA)):
        held.of.perform(order)
    assert (held.nic.sent(), held.nic.told[-1][0]) == ([], 100)


NO_TREE = "a host that is in no tree has "
FOLD = Fold((), Place.STAGED, 0, NBYTES, OPERATION, Source.OWN, 0, NBYTES)
COMBINE = Combine(1, NBYTES, Place.STAGED, 2, NBYTES, OPERATION, Source.OWN, 0, NBYTES)
NOTHING_TO_ADD = "a host that does not sum has nothing to combine"


@pytest.mark.parametrize(
    ("shape", "lacks", "order", "text"),
    [
        (RING, "", FOLD, NO_TREE + "nothing to fold"),
        (TREE, "engine", FOLD, NO_TREE + "nothing to fold"),
        (RING, "", PostDown(0, MsgId(1), 1, HEADER, 1, 8), NO_TREE + "nobody below it"),
        (RING, "accumulators", COMBINE, NOTHING_TO_ADD),
        (RING, "ring", COMBINE, NOTHING_TO_ADD),
        (RING, "", OnPath(INA), "an order for a ring on switch, and there is no link, or no tensor"),
    ],
)
def test_an_order_that_cannot_be_meant_is_a_broken_invariant(
    shape: LinkShape, lacks: str, order: Any, text: str
) -> None:
    held = Held(shape)
    if lacks:
        setattr(held.job, lacks, None)
    with pytest.raises(InvariantBroken, match=exactly(text)):
        held.of.perform(order)


def test_nothing_is_sent_before_there_are_tensors() -> None:
    held = Held()
    held.of.tensors = None
    with pytest.raises(InvariantBroken, match="a ring on chain, and there is no link, or no tensor"):
        held.of.perform(SENDS)


# --- sums of one host


def test_sums_of_the_ranks_here_are_handed_out_slice_by_slice_and_end_in_order() -> None:
    held = Held()
    empty = Operation(OpIndex(0), Dtype.I32, Op.SUM, 0, 1)
    assert held.of.take_slice() is None
    assert held.of.take_sum() is None
    for operation in (OPERATION, empty):
        held.of.sum(events.SumLocally(operation))
    tensors, held.of.tensors = held.of.tensors, None
    assert held.of.take_slice() is None
    held.of.tensors = tensors
    parts = list(iter(held.of.take_slice, None))
    assert sum(part.nbytes for part in parts) == OPERATION.nbytes
    assert len(parts) > 1
    for part in reversed(parts):
        assert held.of.take_sum() is None
        held.of.added(part)
    assert [held.of.take_sum() for _ in range(3)] == [OPERATION, empty, None]
    held.of.sum(events.SumLocally(OPERATION))
    held.of.added(parts[0])
    assert not held.of.sums[0].is_done, "a slice of a sum that is no more"
