"""Faults of congestion control: marks, notifications and rates."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.dcqcn import NotificationPoint, ReactionPoint
from inaproto.core.rdma.requester import RcRequester
from tests.planted.planting import fault

RATES: Final = "docs/protocol.md 4.5, congestion control"
DCQCN: Final = "tests/unit/test_dcqcn.py"
NIC: Final = "tests/unit/test_softnic_congestion.py"

CONGESTION_FAULTS: Final = (
    fault(
        "every_mark_notified",
        RATES,
        "sends a notification for each marked packet, however young the last one is",
        NotificationPoint.step,
        "now < self._quiet_until",
        "False",
        test=f"{DCQCN}::test_figure_6_marks_within_the_interval_are_told_once_at_its_end",
    ),
    fault(
        "cut_by_the_alpha_that_follows",
        RATES,
        "lets alpha grow before it cuts the rate, not after it",
        ReactionPoint._cut,
        "(1 - self._alpha / 2)",
        "(1 - ((1 - self._gain) * self._alpha + self._gain) / 2)",
        test=f"{DCQCN}::test_equation_2_alpha_shrinks_with_each_period_without_a_notification",
    ),
    fault(
        "steps_counted_on_through_a_cut",
        RATES,
        "begins fast recovery with the steps that were counted before the cut",
        ReactionPoint._cut,
        "self._timer_steps = self._byte_steps = self._bytes = 0",
        "self._bytes = 0",
        test=f"{DCQCN}::test_figure_7_a_notification_begins_all_counts_anew",
    ),
    fault(
        "timer_runs_while_the_rate_holds_a_group_back",
        RATES,
        "starts the retransmission timer with the first packet of a group that its rate holds back",
        RcRequester._hold,
        "self._timer = None",
        "pass",
        test=f"{NIC}::test_the_retransmission_timer_waits_for_the_rest_of_an_ack_group",
    ),
)
