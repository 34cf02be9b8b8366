"""One rank of the explored ring: the real ring engine, requester and responder, and the memory they use.

What the shells around the cores do (NIC engine and host daemon) is done here in one step, without I/O: read
what is to be sent from memory, write what arrives into it, answer, take results. ``violation`` says what
went wrong, in the rank's own view or by what it took; nothing goes wrong in a healthy ring.
"""

from __future__ import annotations

from collections import deque
from typing import Final, assert_never

import numpy as np

from inaproto.core.host.engines.in_network import (
    Operation,
    OperationDone,
    OperationFailed,
    Overdue,
    PostMessage,
    ResultArrived,
    RingAction,
    RingBroken,
    RingConfig,
    RingEngine,
    SendCompleted,
    Stalled,
    Submit,
    TakeResult,
)
from inaproto.core.rdma.reliable_connection import ACK, NAK_SEQUENCE, Outcome
from inaproto.core.rdma.requester import (
    AckArrived,
    Complete,
    Failed,
    PostWrite,
    RcRequester,
    RequesterAction,
    RequesterConfig,
    TimerExpired,
    Transmit,
)
from inaproto.core.rdma.responder import (
    Deliver,
    Place,
    PostReceive,
    RcResponder,
    ReceiveFlushed,
    Reply,
    ResponderAction,
    ResponderConfig,
    ResponderFailed,
    RunArrived,
    append_reply,
)
from inaproto.errors import Blame
from inaproto.sim.explore.ring.config import EPOCH, KEY, MTU, RING_ID, RKEY, RingWorldConfig
from inaproto.sim.explore.ring.packet_table import PATHS, Channel, PacketTable, Path, Sent
from inaproto.sim.explore.ring.wrong_sum import made_of
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from inaproto.wire.roce import Opcode

START: Final = -2
TIMER: Final = -1
"""Events; all others are ``2 * packet``, and ``2 * packet + 1`` where the packet comes late enough."""

NOW: Final = Instant(0)
LATER: Final = Instant(1 << 60)
"""Longer after a go-back than any round trip or timer."""

_NO_PAYLOAD: Final = np.empty((1, 0), np.uint8)
_NO_REQUEST: Final = np.zeros(1, np.bool_)
LEFT_OUT: Final = frozenset({"config", "counters", "_config", "_packets", "_rank", "_steady_window"}) | {
    "_now",
    "_outbox",
    "_completions",
}
"""Attributes of a rank and its cores that never change, are only counted, or are set before they are read; no
name of these means anything else in another core."""


class LiveRank:
    """The cores of one rank and its memory."""

    def __init__(self, config: RingWorldConfig, packets: PacketTable, rank: int) -> None:
        self._config = config
        self._packets = packets
        self._rank = rank
        width = config.outstanding_packets_max
        every = config.ack_every or width
        self.engine = RingEngine(
            RingConfig(
                ring_id=RingId(RING_ID),
                epoch=Epoch(EPOCH),
                key=KEY,
                rank=Rank(rank),
                ring_size=config.ranks,
                mtu=MTU,
                message_packets=config.length,
                window_messages=config.window,
                id_bits=config.msg_id_bits,
                unacknowledged_messages=0 if config.held_for_acks else 2 * config.window,
            )
        )
        self.requester = RcRequester(
            RequesterConfig(
                initial_psn=config.initial_psn,
                mtu=MTU,
                outstanding_packets_max=width,
                ack_every=every,
                psn_mask=config.psn_mask,
            )
        )
        self.responder = RcResponder(
            ResponderConfig(initial_psn=config.initial_psn, mtu=MTU, psn_mask=config.psn_mask)
        )
        self._steady_window = every >= width
        slots = 2 * config.window
        for receive in range(slots + 2):
            self.responder.step(PostReceive(receive), NOW)
        self.slots = [bytes(config.message_bytes)] * slots
        self.headers = [b""] * slots
        self.violation: str | None = None
        self._now = NOW
        self._outbox: list[tuple[Channel, int]] = []
        self._completions: deque[ResultArrived | SendCompleted] = deque()

    def step(self, event: int, clock: Instant | None = None) -> Sent:
        """Step. With a ``clock``, time is what it says, and not what ``event`` says."""
        self._now = clock if clock is not None else LATER if event & 1 and event >= 0 else NOW
        self._outbox = []
        self._completions = deque()
        if event == START:
            config = self._config
            operation = Operation(OpIndex(0), Dtype.I32, Op.SUM, config.nbytes, config.signature)
            self._ring(self.engine.step(Submit(operation), NOW))
        elif event == TIMER:
            self._time_out()
        else:
            self._arrived(event >> 1)
        while self._completions:  # after the NIC has sent what it had to
            completion = self._completions.popleft()
            actions = self.engine.step(completion, NOW)
            if isinstance(completion, ResultArrived):
                self._judge(completion, actions)
            self._ring(actions)
        return tuple(self._outbox)

    def _time_out(self) -> None:
        """The timer expires; served late, it does so when it has been set again."""
        timeouts = self.requester.counters.timeouts
        while self.requester.counters.timeouts == timeouts:
            deadline = self.requester.deadline
            assert deadline is not None, "the timer of a rank that waits for nothing"
            self._now = max(self._now, deadline)
            self._requests(self.requester.step(TimerExpired(), self._now))

    def normalise(self) -> None:
        """``rank_machine`` says why nothing later depends on what is overwritten."""
        state = vars(self.requester)
        state["_timing"] = state["_round_trip_ns"] = None
        state["_doublings"] = state["_timer_ns"] = 0
        state["_excused"] = False
        if state["_timer"] is not None:
            state["_timer"] = NOW
        if state["_went_back"] is not None:
            to = state["_went_back"][0]
            state["_went_back"] = None if to < state["_una"] else (to, NOW)
        if self._steady_window:
            state["_window_credit"] = 0

    # -- the network ---------------------------------------------------------------------------

    def _arrived(self, number: int) -> None:
        packet = self._packets[number]
        run = packet.run
        if run.opcode == Opcode.RC_ACK:
            assert run.aeth is not None, "an ACK has an AETH"
            event = AckArrived(int(run.psn[0]), *run.aeth)
            self._requests(self.requester.step(event, self._now))
            return
        where = self.responder.place_at if run.reth is None else run.reth
        size = len(self.slots) * self._config.message_bytes
        permitted = where is not None and where[1] == RKEY and where[0] + where[2] <= size
        arrival = RunArrived(
            opcode=run.opcode,
            psn=run.psn & self._config.psn_mask,
            ack_request=run.ack_request,
            payload_bytes=run.payload_bytes,
            reth=run.reth,
            imm=run.imm,
            permitted=permitted,
        )
        self._responses(self.responder.step(arrival, self._now), run.payload()[0].tobytes())

    def _responses(self, actions: list[ResponderAction], payload: bytes) -> None:
        replies: list[Reply] = []
        for action in actions:
            match action:
                case Place(va, _, _, rows):
                    assert rows == 1, "packets arrive one at a time"
                    slot, at = divmod(va, self._config.message_bytes)
                    old = self.slots[slot]
                    self.slots[slot] = old[:at] + payload + old[at + len(payload) :]
                case Deliver(wr_id, imm, nbytes):
                    self.responder.step(PostReceive(wr_id), NOW)
                    header = self.slots[imm % len(self.slots)][:INA_HEADER_BYTES]
                    self._completions.append(ResultArrived(imm, nbytes, header))
                case Reply():
                    append_reply(replies, action)
                case Blame() | ReceiveFlushed() | ResponderFailed():
                    self._broken(f"its receiving queue pair: {action}")
                case _:
                    assert_never(action)
        for reply in replies:
            if reply.syndrome not in (ACK, NAK_SEQUENCE):
                self._broken(
                    f"it answers with syndrome {reply.syndrome:#04x}, which a healthy ring never needs"
                )
            frames = self._config.ack_template(self._rank).build(
                opcode=Opcode.RC_ACK,
                psns=np.array([reply.psn]),
                ack_request=_NO_REQUEST,
                ip_id=0,
                payload=_NO_PAYLOAD,
                # The MSN is for requesters that send without PSN order; ours does not read it.
                aeth=(reply.syndrome, 0),
            )
            before = (self._rank - 1) % self._config.ranks
            self._outbox.append((before * PATHS + Path.ACK, self._packets.number(frames.tobytes())))

    # -- the requester -------------------------------------------------------------------------

    def _requests(self, actions: list[RequesterAction]) -> None:
        for action in actions:
            match action:
                case Transmit():
                    self._transmit(action)
                case Complete(wr_id, outcome):
                    if outcome is not Outcome.SUCCESS:
                        self._broken(f"its write {wr_id} ended: {outcome.value}")
                    else:
                        self._completions.append(SendCompleted(wr_id))
                case Blame() | Failed():
                    self._broken(f"its sending queue pair: {action}")
                case _:
                    assert_never(action)

    def _transmit(self, order: Transmit) -> None:
        config, message = self._config, order.message
        content = self._message_bytes(message.serial, message.write.nbytes)
        last = message.packets - 1
        template = config.data_template(self._rank)
        for number in range(order.first_packet, order.first_packet + order.count):
            payload = np.frombuffer(content, np.uint8)[number * MTU : (number + 1) * MTU]
            opcode = {
                (True, True): Opcode.RC_WRITE_ONLY_IMM,
                (True, False): Opcode.RC_WRITE_FIRST,
                (False, False): Opcode.RC_WRITE_MIDDLE,
                (False, True): Opcode.RC_WRITE_LAST_IMM,
            }[number == 0, number == last]
            write = message.write
            frames = template.build(
                opcode=opcode,
                psns=np.array([(order.psn + number - order.first_packet) & config.psn_mask]),
                ack_request=np.array([number == last or number in order.ack_packets]),
                ip_id=message.serial * config.length + number + 1,
                payload=payload[None],
                reth=(write.remote_va, write.rkey, write.nbytes) if number == 0 else None,
                imm=write.imm if number == last else None,
            )
            channel = self._rank * PATHS + Path.DATA
            self._outbox.append((channel, self._packets.number(frames.tobytes())))

    def _message_bytes(self, serial: int, nbytes: int) -> bytes:
        """What a NIC reads when it sends a message: whatever its memory holds now."""
        config = self._config
        taken = config.in_place and serial < self._results_taken
        source = config.expected if taken else config.inputs[self._rank]
        at = serial * config.tensor_bytes
        return self.headers[serial % len(self.headers)] + source[at : at + nbytes - INA_HEADER_BYTES]

    # -- the ring engine -----------------------------------------------------------------------

    @property
    def _results_taken(self) -> int:
        return self.engine.view().messages_received

    @property
    def progress(self) -> tuple[int, int, int]:
        """Messages sent, results taken, sends completed."""
        view = self.engine.view()
        return view.messages_sent, view.messages_received, view.messages_sent - view.unacknowledged

    @property
    def is_done(self) -> bool:
        """The operation has ended and nothing is unacknowledged."""
        return self.engine.view().operations_done == 1 and self.requester.view().messages == 0

    @property
    def unacknowledged(self) -> tuple[tuple[int, int], ...]:
        """(message, offset) of the packets that were sent and not acknowledged, in PSN order."""
        state = vars(self.requester)
        return tuple(
            (message.serial, sequence - message.first_seq)
            for message in state["_messages"]
            for sequence in range(message.first_seq, message.first_seq + message.packets)
            if state["_una"] <= sequence < state["_sent"]
        )

    def _ring(self, actions: list[RingAction]) -> None:
        config = self._config
        for action in actions:
            match action:
                case PostMessage(msg_id, slot, header, _, _, nbytes):
                    self.headers[slot] = header
                    write = PostWrite(
                        msg_id, INA_HEADER_BYTES + nbytes, slot * config.message_bytes, RKEY, imm=msg_id
                    )
                    self._requests(self.requester.step(write, self._now))
                case TakeResult(slot, _, offset, nbytes):
                    self._take(slot, offset, nbytes)
                case OperationDone():
                    view = self.engine.view()
                    if view.messages_received != config.messages:
                        self._broken(f"its operation ended after {view.messages_received} messages")
                case OperationFailed() | Stalled() | Overdue() | Blame() | RingBroken():
                    self._broken(f"its ring engine says: {action}")
                case _:
                    assert_never(action)
        sent, taken, completed = self.progress
        if sent > taken + config.window or sent > completed + 2 * config.window:
            self._broken(f"the window is passed: {sent} sent, {taken} results, {completed} completed")

    def _judge(self, result: ResultArrived, actions: list[RingAction]) -> None:
        """Say what a result holds that the ring engine refuses."""
        blame = next((action for action in actions if isinstance(action, Blame)), None)
        if blame is None:
            return
        config, taken = self._config, self._results_taken
        content = self.slots[result.imm % len(self.slots)][INA_HEADER_BYTES : result.nbytes]
        ids = 1 << config.msg_id_bits
        message = max(0, taken + (result.imm - taken + ids // 2) % ids - ids // 2)
        at = message * config.tensor_bytes
        right = content == config.expected[at : at + len(content)]
        sum_is = "the right sum" if right else "a wrong sum"
        made = "" if right else made_of(config, message, content)
        why = {
            "result of a message not sent": f"it has not sent its own message {message} yet",
            "result out of order": f"the result of message {taken} is due",
        }.get(blame.rule, f"{blame.rule}: {blame.evidence}")
        self._broken(
            f"it gets {sum_is} as the result of message {message}{made}. "
            f"Its ring engine refuses the result: {why}"
        )

    def _take(self, slot: int, offset: int, nbytes: int) -> None:
        found = self.slots[slot][INA_HEADER_BYTES : INA_HEADER_BYTES + nbytes]
        if found != self._config.expected[offset : offset + nbytes]:
            message = offset // self._config.tensor_bytes
            made = made_of(self._config, message, found)
            self._broken(f"it takes a wrong sum as the result of message {message}{made}, without any error")
        self.slots[slot] = bytes(self._config.message_bytes)

    def _broken(self, what: str) -> None:
        if self.violation is None:
            self.violation = f"rank {self._rank}: {what}"
