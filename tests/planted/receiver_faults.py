"""Faults of a NIC: the responder's order and acknowledgements, checksums, timers, completions."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.nic import SoftNicEngine
from inaproto.core.rdma.receiving import Receiving
from inaproto.core.rdma.requester import RcRequester
from inaproto.core.rdma.responder import RcResponder
from tests.planted.planting import Change, PlantedFault, fault

RELIABILITY: Final = "NetReduce 3.2, reliability"

RECEIVER_FAULTS: Final = (
    PlantedFault(
        "responder_psn_without_wrap",
        RELIABILITY,
        "counts expected PSNs up without end and subtracts them as plain numbers",
        (
            Change(
                RcResponder._packet,
                "(packet.psn - self._expected) & self.config.psn_mask",
                "packet.psn - self._expected",
            ),
            Change(RcResponder._packet, "elif ahead >= self._half:", "elif ahead < 0:"),
            Change(
                RcResponder._ahead,
                "(psn - self._expected + self._half) & self.config.psn_mask",
                "psn - self._expected + self._half",
            ),
            Change(
                RcResponder._place,
                "(self._expected + rows) & self.config.psn_mask",
                "self._expected + rows",
            ),
        ),
    ),
    PlantedFault(
        "ack_before_store",
        RELIABILITY,
        "acknowledges the packet that ends a gap and leaves its payload out",
        (Change(RcResponder._place, "if nbytes:", "if nbytes and not self._silent:"),),
    ),
    fault(
        "gap_acknowledged",
        RELIABILITY,
        "acknowledges the highest PSN that has come, as if nothing before it were missing",
        RcResponder._packet,
        "        self._gap(packet, 0, ahead, 1, actions, replies)",
        "        self._expected = (packet.psn + 1) & self.config.psn_mask\n"
        "        append_reply(replies, self._received())",
    ),
    PlantedFault(
        "nak_for_every_packet",
        RELIABILITY,
        "sends a NAK for each packet behind a gap, not for the gap",
        (Change(RcResponder._gap, "if not self._silent:", "if True:"),),
    ),
    fault(
        "duplicate_completes_again",
        RELIABILITY,
        "tells of a message once more when its last packet comes again",
        RcResponder._packet,
        "self._repeated(1, replies)",
        "self._repeated(1, replies)\n"
        "        if packet.imm is not None and self._receives:\n"
        "            wr_id = self._receives.popleft()\n"
        "            actions.append(Deliver(wr_id, packet.imm, packet.payload_bytes))",
    ),
    PlantedFault(
        "icrc_not_verified_by_nic",
        "docs/protocol.md 3.3, integrity",
        "takes packets in without a look at their checksum",
        (
            Change(Receiving._packet, "if not packet.intact():", "if False:"),
            Change(Receiving._run, "right = run.verify(self._rows.crc)", "right = run.psn >= 0"),
            Change(
                Receiving._more_of_a_message,
                "(self._rows.crc(tail) ^ share).tobytes() != frames[:, -ICRC_BYTES:].tobytes()",
                "False",
            ),
        ),
    ),
    PlantedFault(
        "timer_outlives_queue_pair",
        RELIABILITY,
        "destroys a queue pair and leaves its timer armed",
        (
            Change(SoftNicEngine.destroy_qp, "self._deadlines.arm(qpn, None)", "pass"),
            Change(
                RcRequester._flush,
                "self._timer = self._rnr_until = self._held_until",
                "self._rnr_until = self._held_until",
            ),
        ),
    ),
    PlantedFault(
        "payloads_kept_for_ever",
        "inaproto.core.rdma.nic: memory",
        "keeps the payload of a write that is complete",
        (Change(SoftNicEngine._perform_requests, "del connection.gathers[message.serial]", "pass"),),
    ),
    PlantedFault(
        "completions_counted_for_ever",
        "inaproto.core.rdma.nic: the completion queue cannot overflow",
        "counts work requests when they come, not when their completions have been polled",
        (Change(SoftNicEngine.take_completions, "self._work -= len(taken)", "pass"),),
    ),
)
