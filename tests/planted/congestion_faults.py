"""Faults of congestion control: marks, notifications and rates."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.congestion import FlowCongestion
from inaproto.core.rdma.dcqcn import NotificationPoint, ReactionPoint
from inaproto.core.rdma.requester import RcRequester
from tests.planted.planting import fault

RATES: Final = "docs/protocol.md 4.5, congestion control"
DCQCN: Final = "tests/unit/test_dcqcn.py"
TIMER: Final = "tests/unit/test_rc_paced.py"

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
        RcRequester._transmit,
        "if is_held and self._hold():",
        "if is_held and self._hold() and False:",
        test=f"{TIMER}::test_the_timer_waits_for_the_rest_of_a_group_that_asks_nobody_yet",
        arguments=(RcRequester,),
    ),
    fault(
        "timer_set_anew_for_each_group_held_back",
        RATES,
        "starts the timer anew whenever a group is held back, also for groups that have asked",
        RcRequester._hold,
        "and self._cursor - left <= self._una",
        "and True",
        test=f"{TIMER}::test_a_group_that_has_asked_is_not_waited_for_until_others_have_left",
        arguments=(10,),
    ),
    fault(
        "growth_lost_to_a_notification",
        RATES,
        "cuts a rate without the steps of its timer that were due before the notification",
        FlowCongestion.notified,
        "grown = self.reaction.step(TimerExpired(), now)",
        "grown: list[SetRate] = []",
        test="tests/unit/test_softnic_paced.py::test_a_notification_loses_no_growth_that_was_due_before_it",
        arguments=(60,),
    ),
)
