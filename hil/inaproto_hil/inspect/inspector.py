"""The inspection of a capture, frame by frame: pure, so that it works on files and on what comes live.

Each frame is looked at alone, then in its connection, then in its ring. A packet that breaks a rule changes
nothing of what is known: what follows is judged by what was right before it.

What it cannot know it does not say. A ring is judged by its inputs only if its first messages were captured
at all its ranks, nothing was lost by the capture, and no part of it goes to another switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE
from inaproto.core.switch.tree.translation import VIRTUAL_UDP_PORT
from inaproto.wire.files.pcapng import LINKTYPE_ETHERNET, CapturedFrame, Direction
from inaproto.wire.roce import Opcode
from inaproto_hil.inspect.answer_rules import AnsweredPairs, Answers, is_from_the_start, judge_answer, pair
from inaproto_hil.inspect.findings import (
    MESSAGE_LENGTH,
    NOT_A_RESULT,
    OPCODE_ORDER,
    RANKS_DISAGREE,
    RESULT_ORDER,
    RKEY,
    TOO_EARLY,
    WRONG_SUM,
    Books,
    Broken,
)
from inaproto_hil.inspect.flows import Flow, Message, Stream, is_write
from inaproto_hil.inspect.packets import Connection, Seen, look
from inaproto_hil.inspect.request_rules import judge_request
from inaproto_hil.inspect.result_rules import judge_connection, judge_mark, judge_result
from inaproto_hil.inspect.ring_rules import RINGS_MAX, Ring, judge_agreement, judge_first, judge_last

FLOWS_MAX: Final = 1024
_PSN_COUNTS: Final = (
    NOT_A_RESULT,
    WRONG_SUM,
    RESULT_ORDER,
    TOO_EARLY,
    MESSAGE_LENGTH,
    OPCODE_ORDER,
    RKEY,
    RANKS_DISAGREE,
)
"""Rules whose breach leaves the packet its place: what follows it is right."""


@dataclass(frozen=True, slots=True)
class Counts:
    frames: int
    roce: int
    broken: int


class Inspector:
    """``feed`` takes one frame and returns the packet that breaks a rule, if that frame shows one."""

    def __init__(self) -> None:
        self.books: Final = Books()
        self.flows: dict[Connection, Flow] = {}
        self.rings: dict[int, Ring] = {}
        self.ended: list[Flow] = []
        """Connections whose names were used again."""
        self.frames = 0
        self.roce = 0
        self.broken = 0
        self.captures_lost = 0
        """Frames that the capture itself lost."""
        self._sources: dict[str, set[bytes]] = {}
        """IP addresses that sent something into each port: several, where another switch is behind it."""
        self._answers: dict[tuple[Connection, Direction, str], Answers] = {}
        self._pairs: Final = AnsweredPairs(FLOWS_MAX)
        self._answered: set[tuple[bytes, bytes]] = set()
        """Source and destination of packets that were answered, and sent before the capture began."""
        self._spanning: set[int] = set()
        """Low bits of the ids of rings that span switches."""

    def feed(self, frame: CapturedFrame) -> Broken | None:
        self.frames += 1
        if frame.dropped:
            self.captures_lost += frame.dropped
            for ring in self.rings.values():
                ring.lose_sight()
        if frame.interface.linktype != LINKTYPE_ETHERNET:
            self.books.note(f"frames of link type {frame.interface.linktype}, not looked at")
            return None
        found = look(frame, self.books)
        if isinstance(found, Seen):
            self.roce += 1
            found = self._packet(found)
        elif found is not None:
            self.roce += 1
        if found is not None:
            self.broken += 1
        return found

    def counts(self) -> Counts:
        return Counts(self.frames, self.roce, self.broken)

    # -- requests and results

    def _packet(self, seen: Seen) -> Broken | None:
        packet = seen.packet
        if packet.dest_qp & VIRTUAL_QP_BASE and packet.data[34:36] == VIRTUAL_UDP_PORT.to_bytes(2, "big"):
            self.books.note("packets between switches")
            self._spanning.add(packet.dest_qp & (VIRTUAL_QP_BASE - 1))
            self._sources.setdefault(seen.frame.interface.name, set()).update((packet.src_ip, packet.dst_ip))
            return None
        if packet.opcode == Opcode.RC_ACK:
            return self._answer(seen)
        self._note_source(seen)
        flow = self.flows.get(seen.connection)
        if flow is not None and flow.is_another(seen):
            self.books.note("connections that begin anew")
            self.ended.append(flow)
            del self.ended[:-FLOWS_MAX]
            flow = None
        if flow is None:
            if seen.is_outbound:
                broken = judge_connection(seen, filter(self._is_whole_flow, self.flows.values()), self.books)
                if broken is not None:
                    return broken
            flow = self._new_flow(seen)
        stream, position = flow.stream(seen), flow.place(packet.psn)
        broken = (
            judge_first(seen, flow, self.rings, position, self.books)
            or judge_request(
                seen, flow, stream, position, self.books, may_change=self._may_change(flow, stream, position)
            )
            or judge_agreement(seen, self.rings, self.books)
            or judge_mark(seen, stream, self.books)
            or self._take(seen, flow, stream, position)
        )
        if broken is not None and broken.rule in _PSN_COUNTS:
            flow.carry(stream, position, seen)
            if seen.is_outbound and flow.due is not None:
                flow.due = max(flow.due, position + 1)
        elif broken is not None and flow.high is None:
            del self.flows[seen.connection]
        return broken

    def _note_source(self, seen: Seen) -> None:
        sources = self._sources.setdefault(seen.frame.interface.name, set())
        if seen.is_inbound and len(sources) < 2:
            sources.add(seen.packet.src_ip)

    def _may_change(self, flow: Flow, stream: Stream, position: int) -> bool:
        """Whether a rank may send other bytes again: its result is there, or would not have been captured."""
        ring = None if flow.ring_id is None else self.rings.get(flow.ring_id)
        message = flow.message_at(position)
        if message is None or message.between_hosts:
            return True
        if ring is None or stream.is_result or message.ina is None:
            return False
        known = ring.messages.get(message.ina.msg_id)
        is_captured = flow.connection[0] in ring.targets or len(ring.inputs) == ring.ina.ring_size
        if known is None or not is_captured or not ring.is_seen(message.ina.msg_id):
            return True
        return position - message.begin in known.results

    def _new_flow(self, seen: Seen) -> Flow:
        port = int.from_bytes(seen.packet.data[34:36], "big")
        flow = Flow(seen.connection, seen.frame.number, udp_port=port)
        self.flows[seen.connection] = flow
        if len(self.flows) > FLOWS_MAX:
            oldest = self.flows.pop(next(iter(self.flows)))
            if oldest.ring_id in self.rings:
                self.rings[oldest.ring_id].lose_sight()
        return flow

    def _take(self, seen: Seen, flow: Flow, stream: Stream, position: int) -> Broken | None:
        """Into the state, with what its ring says."""
        flow.open_message(position, seen)
        ring = self._ring(seen, flow)
        message = flow.message_at(position) if is_write(seen) else None
        if ring is not None and message is not None and message.ina is not None:
            is_result = seen.is_result or bool(stream.is_result)
            ring.latest = message.ina.msg_id
            if is_result:
                ring.targets.add(flow.connection[1])
                ring.message(message.ina, message.frame).results.add(position - message.begin)
            if seen.is_outbound and is_result:
                whole = self._is_whole(ring, message.ina.msg_id)
                broken = judge_result(seen, flow, ring, position, is_whole=whole, books=self.books)
                if broken is not None:
                    return broken
                self._result_left(flow, position)
            elif seen.is_inbound and not is_result:
                broken = self._input(seen, flow, ring, message, position)
                if broken is not None:
                    return broken
                if seen.ina is not None:
                    self._take_early(flow, ring, message)
        elif message is None and seen.is_inbound and is_write(seen):
            flow.keep_early(position, seen)
        again, late = flow.carry(stream, position, seen)
        if again:
            self.books.note("packets sent again")
        if late:
            self.books.note("packets that came late")
        return None

    def _ring(self, seen: Seen, flow: Flow) -> Ring | None:
        if flow.ring_id is None:
            return None
        ring = self.rings.get(flow.ring_id)
        if ring is None and seen.ina is not None:
            ring = self.rings[flow.ring_id] = Ring(seen.ina, seen.frame.number)
            if len(self.rings) > RINGS_MAX:
                del self.rings[next(iter(self.rings))]
        if ring is None or flow.rank is None:
            return None
        if flow.rank not in ring.ranks:
            ring.ranks[flow.rank] = flow.connection
            if seen.ina is not None:
                ring.latest = seen.ina.msg_id
            is_answered = flow.connection[:2] in self._answered
            if seen.ina is None or seen.ina.msg_id != 0 or flow.first is not None or is_answered:
                ring.lose_sight()
            if seen.is_inbound and not seen.is_result:
                ring.inputs.add(flow.rank)
        return ring

    def _input(self, seen: Seen, flow: Flow, ring: Ring, message: Message, position: int) -> Broken | None:
        assert message.ina is not None, "a message of a ring"
        assert flow.rank is not None, "a message of a ring"
        store = ring.message(message.ina, message.frame)
        offset = position - message.begin
        if offset == message.packets - 1:
            broken = judge_last(seen, ring, store, flow.rank, self.books)
            if broken is not None:
                return broken
        end = seen.packet.header_bytes + seen.packet.payload_bytes
        ring.keep(store, flow.rank, offset, seen.packet.data[seen.summed_from : end])
        if flow.due is None and ring.is_seen(message.ina.msg_id):
            flow.due = message.begin
        flow.came_in(position)
        return None

    def _take_early(self, flow: Flow, ring: Ring, message: Message) -> None:
        """Packets that overtook the first one of their message were held for it (docs/protocol.md 6.13)."""
        for position in range(message.begin, message.end):
            early = flow.early.pop(position, None)
            if early is not None and self._input(early, flow, ring, message, position) is None:
                self.books.note("packets that overtook the first one of their message")

    def _result_left(self, flow: Flow, position: int) -> None:
        if flow.due is None or position < flow.due:
            return
        flow.left.add(position)
        while flow.due in flow.left:
            flow.left.discard(flow.due)
            flow.placed.discard(flow.due)
            flow.due += 1

    def _is_whole(self, ring: Ring, msg_id: int) -> bool:
        """Whether all that came in for a message is known, now that a result of it is here."""
        if len(ring.inputs) < ring.ina.ring_size:
            ring.lose_sight()
        return ring.is_seen(msg_id) and ring.ina.ring_id & (VIRTUAL_QP_BASE - 1) not in self._spanning

    def _is_whole_flow(self, flow: Flow) -> bool:
        ring = None if flow.ring_id is None else self.rings.get(flow.ring_id)
        return ring is not None and self._is_whole(ring, ring.latest)

    # -- answers

    def _answer(self, seen: Seen) -> Broken | None:
        self._note_source(seen)
        if len(self._sources[seen.frame.interface.name]) > 1:
            self.books.note("answers at a port to another switch, not judged")
            return None
        key = seen.connection, seen.frame.direction, seen.frame.interface.name
        self._pairs.answered(seen)
        answers = self._answers.get(key)
        if answers is None or self.flows.get(answers.flow.connection) is not answers.flow:
            flow, by_port = pair(seen, self.flows.values())
            if flow is None:
                self._answers.pop(key, None)
                self.books.note("answers that belong to no connection seen")
                if len(self._answered) < FLOWS_MAX:
                    self._answered.add((seen.packet.dst_ip, seen.packet.src_ip))
                return None
            answers = self._answers[key] = Answers(flow, by_port=by_port)
            if len(self._answers) > 2 * FLOWS_MAX:
                del self._answers[next(iter(self._answers))]
        is_whole = self._may_judge(seen, answers)
        is_among_more = not answers.by_port and self._is_among_more(seen)
        return judge_answer(seen, answers, self.books, is_whole=is_whole, is_among_more=is_among_more)

    def _is_among_more(self, seen: Seen) -> bool:
        """Whether more queue pairs are answered than have connections here."""
        source, target, _ = seen.connection
        flows = [flow for name, flow in self.flows.items() if name[:2] == (target, source)]
        since = min((flow.since for flow in flows), default=0)
        return self._pairs.count(seen, since) > len(flows)

    def _may_judge(self, seen: Seen, answers: Answers) -> bool:
        """Whether the capture shows all that an answer can be about."""
        flow = answers.flow
        ring = None if flow.ring_id is None else self.rings.get(flow.ring_id)
        if self.captures_lost or seen.aeth is None:
            return False
        if ring is not None and ring.is_seen(ring.latest):
            return True
        answers.is_whole = answers.is_whole or is_from_the_start(flow, seen.aeth[1])
        return answers.is_whole
