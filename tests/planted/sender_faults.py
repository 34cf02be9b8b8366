"""Faults of a host that sends: message window, operations, and the requester's go-back-N."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.engines.in_network import RingEngine
from inaproto.core.host.message_window import MessageWindow
from inaproto.core.host.operation_queue import OperationQueue
from inaproto.core.rdma.requester import RcRequester
from tests.planted.planting import Change, PlantedFault, fault
from tests.planted.shapes import busy, one_message_window, stalling

FLOW_CONTROL: Final = "NetReduce 3.2, flow control"
RELIABILITY: Final = "NetReduce 3.2, reliability"
OPERATIONS: Final = "NetReduce 3.1, sending and receiving"

_ONE_AGAIN: Final = """\
ahead, window, every = self._sent, self._window, self._ack_every
    self._window = self._ack_every = 1
    again = self._transmit(now)
    self._window, self._ack_every = window, every
    self._cursor = ahead
    ends = [message.first_seq + message.packets for message in self._messages]
    self._cursor_index = sum(end <= ahead for end in ends)
    return again"""

SENDER_FAULTS: Final = (
    fault(
        "window_one_too_wide",
        FLOW_CONTROL,
        "compares with <= where < was meant: N+1 messages are in flight",
        MessageWindow.sendable,
        "self._received + self._config.window_messages,",
        "self._received + self._config.window_messages + 1,",
    ),
    fault(
        "window_advanced_on_ack",
        FLOW_CONTROL,
        "lets the next message out when the transport has acknowledged one, not when a result has come",
        MessageWindow.sendable,
        "self._received + self._config.window_messages,",
        "self._completed + self._config.window_messages,",
    ),
    PlantedFault(
        "header_slot_reused_early",
        FLOW_CONTROL + "; the addition in inaproto.core.host.message_window",
        "writes the header of message m+2N while the transport may still resend message m",
        (Change(MessageWindow.sendable, "self._completed + self._unacknowledged_max,", "self._offered,"),),
        shape=one_message_window,
        seeds_max=200,
    ),
    fault(
        "done_before_last_result",
        OPERATIONS,
        "ends an operation when all messages that were sent so far have their results",
        RingEngine._take_all,
        "if operations.results == operations.messages:",
        "if operations.results == (operations.in_flight == 1 and operations._sent or operations.messages):",
    ),
    fault(
        "done_reported_twice",
        OPERATIONS,
        "the end of the last message and the end of the operation both report it as done",
        RingEngine._end,
        "actions.append(operations.end(operations.running))",
        "actions += [OperationDone(operations.running.index), operations.end(operations.running)]",
    ),
    fault(
        "queued_operations_forgotten",
        OPERATIONS,
        "a failure ends the running operation; those that wait behind it never hear of it",
        OperationQueue.fail,
        "ended = self.unended",
        "ended = self.unended if self.running is None else [self.running]",
        shape=busy,
    ),
    fault(
        "stall_reported_once",
        OPERATIONS,
        "reports the first stall of an operation and sets no timer after it",
        OperationQueue.deadline,
        "if self.running is None:",
        "if self.running is None or self._reported != self.since:",
        shape=stalling,
    ),
    PlantedFault(
        "result_flag_not_demanded",
        "inaproto.core.host.engines.in_network: a result is marked by the accelerator",
        "takes whatever message has the right header for a result",
        (Change(RingEngine._contradiction, "if not got.is_result:", "if False:"),),
        test="tests/paper/test_netreduce_3_2_reliability.py::test_a_rank_takes_nothing_for_a_result_that_was_not_summed",
    ),
    fault(
        "resend_first_only",
        RELIABILITY,
        "resends the first unacknowledged packet alone and goes on where it was",
        RcRequester._retry,
        "return self._transmit(now)",
        _ONE_AGAIN,
        test="tests/paper/test_netreduce_3_2_reliability.py::test_a_nak_brings_every_packet_from_the_missing_one_on",
    ),
    PlantedFault(
        "requester_psn_compared_without_wrap",
        RELIABILITY,
        "subtracts PSNs as plain numbers when it places an acknowledgement",
        (
            Change(
                RcRequester._ack_arrived,
                "(ack.psn - self._psn(self._una)) & self.config.psn_mask",
                "ack.psn - self._psn(self._una)",
            ),
            Change(
                RcRequester._ack_arrived,
                "offset >= self._sent - self._una",
                "not 0 <= offset < self._sent - self._una",
            ),
        ),
    ),
    fault(
        "timer_not_rearmed",
        RELIABILITY,
        "sets the retransmission timer when something new is sent, not after a timeout",
        RcRequester._timer_expired,
        "again = self._ask(now)",
        "again = self._ask(now)\n    self._timer = None",
    ),
    fault(
        "timer_not_cancelled",
        RELIABILITY,
        "lets the retransmission timer run on when everything has been acknowledged",
        RcRequester._acknowledge,
        "    self._timer = None\n    self._arm(now)",
        "    if self._una < self._sent:\n        self._timer = None\n    self._arm(now)",
    ),
    PlantedFault(
        "every_nak_honoured",
        RELIABILITY + "; go-back-N in inaproto.core.rdma.requester",
        "goes back once more for each NAK, also for those that the last go-back has not answered yet",
        (Change(RcRequester._sequence_nak, " or self._answers_old_round(now)", ""),),
        test="tests/paper/test_netreduce_3_2_reliability.py::test_one_gap_brings_one_go_back",
    ),
)
