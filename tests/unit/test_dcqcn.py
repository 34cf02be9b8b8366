"""DCQCN (Zhu et al., SIGCOMM 2015, section 3.1): each rule of its three parts (docs/protocol.md 4.5)."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import pytest

from inaproto.core.rdma.congestion import FlowCongestion
from inaproto.core.rdma.dcqcn import (
    BytesSent,
    CnpArrived,
    DcqcnConfig,
    MarkedArrived,
    Marking,
    NotificationPoint,
    ReactionPoint,
    SendCnp,
    SetRate,
    TimerExpired,
)
from inaproto.core.rdma.pacing import FRAME_OVERHEAD_BYTES
from inaproto.errors import ConfigError
from inaproto.units import US, Instant

CONFIG = DcqcnConfig()
LINE = CONFIG.line_rate_bps
T = CONFIG.increase_ns


def at(us: float) -> Instant:
    return Instant(round(us * US))


def deadline(point: NotificationPoint) -> Instant | None:
    return point.deadline


def test_the_defaults_are_the_published_ones() -> None:
    """Section 3.1, table 1 and figure 14; those that the paper does not give are those of ConnectX NICs."""
    assert (1 / CONFIG.gain_parts, CONFIG.fast_recoveries) == (1 / 256, 5)
    assert (CONFIG.alpha_ns, CONFIG.increase_ns, CONFIG.cnp_ns) == (55 * US, 55 * US, 50 * US)
    assert (CONFIG.increase_bytes, CONFIG.additive_bps) == (10_000_000, 40_000_000)
    assert (CONFIG.rate_min_bps, CONFIG.hyper_bps) == (1_000_000, 10 * CONFIG.additive_bps)
    assert Marking() == Marking(k_min_bytes=5_000, k_max_bytes=200_000, p_max_ppm=10_000)


# ---- congestion point: figure 5 ------------------------------------------------------------------


def test_figure_5_the_chance_of_a_mark_grows_from_k_min_to_p_max_at_k_max_and_is_one_beyond() -> None:
    marking = Marking()
    assert [marking.chance_ppm(queue) for queue in (0, 5_000)] == [0, 0]
    assert [marking.chance_ppm(queue) for queue in (5_020, 102_500)] == [1, 5_000]
    assert marking.chance_ppm(200_000) == 10_000
    assert marking.chance_ppm(200_001) == 1_000_000


def test_figure_5_cut_off_marking_is_k_min_at_k_max() -> None:
    marking = Marking(k_min_bytes=40_000, k_max_bytes=40_000)
    assert (marking.chance_ppm(40_000), marking.chance_ppm(40_001)) == (0, 1_000_000)


# ---- notification point: figure 6 ----------------------------------------------------------------


def test_figure_6_the_first_mark_is_told_at_once() -> None:
    point = NotificationPoint(CONFIG)
    assert point.step(TimerExpired(), at(2)) == []
    assert point.step(MarkedArrived(), at(3)) == [SendCnp()]
    assert point.deadline is None


def test_figure_6_marks_within_the_interval_are_told_once_at_its_end() -> None:
    point = NotificationPoint(CONFIG)
    point.step(MarkedArrived(), at(0))
    assert [point.step(MarkedArrived(), at(us)) for us in (10, 20, 49)] == [[], [], []]
    assert deadline(point) == at(50)
    assert point.step(TimerExpired(), at(49)) == []
    assert point.step(TimerExpired(), at(50)) == [SendCnp()]
    assert deadline(point) is None
    assert point.step(TimerExpired(), at(100)) == [], "nothing was marked meanwhile"


def test_figure_6_after_a_quiet_interval_the_next_mark_is_told_at_once() -> None:
    point = NotificationPoint(CONFIG)
    point.step(MarkedArrived(), at(0))
    assert point.step(MarkedArrived(), at(50)) == [SendCnp()]


# ---- reaction point ------------------------------------------------------------------------------


def test_a_flow_starts_at_the_line_rate_and_without_timers() -> None:
    point = ReactionPoint(CONFIG)
    assert (point.view().rate_bps, point.view().alpha, point.deadline) == (LINE, 1.0, None)
    assert (point.view().timer_steps, point.view().byte_steps) == (0, 0)
    assert point.step(BytesSent(10**9), at(1)) == []
    assert point.step(TimerExpired(), at(1000)) == []


def test_equation_1_a_notification_cuts_by_half_of_alpha_and_lets_alpha_grow() -> None:
    point = ReactionPoint(CONFIG)
    assert point.step(CnpArrived(), at(0)) == [SetRate(LINE // 2)]
    view = point.view()
    assert (view.rate_bps, view.target_bps, view.alpha) == (LINE // 2, LINE, 255 / 256 + 1 / 256)
    assert point.deadline == at(55)


def test_equation_2_alpha_shrinks_with_each_period_without_a_notification() -> None:
    point = ReactionPoint(CONFIG)
    point.step(CnpArrived(), at(0))
    point.step(CnpArrived(), at(3 * 55))
    assert point.view().alpha == pytest.approx((255 / 256) ** 4 + 1 / 256)
    assert point.view().rate_bps == pytest.approx(LINE / 2 * (1 - (255 / 256) ** 3 / 2)), (
        "by the alpha before"
    )
    alpha = point.view().alpha
    point.step(CnpArrived(), at(3 * 55 + 54))
    assert point.view().alpha == pytest.approx(alpha * 255 / 256 + 1 / 256), "no whole period had passed"


def test_after_a_long_time_without_a_notification_alpha_is_0_and_the_next_one_cuts_nothing() -> None:
    point = ReactionPoint(CONFIG)
    point.step(CnpArrived(), at(0))
    assert point.step(CnpArrived(), at(55 * 10_000)) == []
    assert point.view().alpha == 1 / 256


def test_equation_3_fast_recovery_goes_half_way_to_the_rate_before_the_cut() -> None:
    point = ReactionPoint(CONFIG)
    point.step(CnpArrived(), at(0))
    rates = [point.step(TimerExpired(), at(55 * n)) for n in range(1, 5)]
    assert rates == [[SetRate(LINE - (LINE >> n + 1))] for n in range(1, 5)]
    assert point.view().target_bps == LINE


def cut_twice(config: DcqcnConfig = CONFIG) -> ReactionPoint:
    """A quarter of the line rate, and half of it as the target."""
    point = ReactionPoint(config)
    point.step(CnpArrived(), at(0))
    point.step(CnpArrived(), at(0))
    return point


def test_equation_4_after_five_times_the_target_grows_by_r_ai() -> None:
    point = cut_twice()
    targets = []
    for step in range(1, 8):
        point.step(TimerExpired(), at(55 * step))
        targets.append(point.view().target_bps - LINE // 2)
    assert targets == [0, 0, 0, 0, *(n * CONFIG.additive_bps for n in (1, 2, 3))]


def test_figure_7_the_counter_of_bytes_steps_as_the_timer_does() -> None:
    point = cut_twice()
    before = point.view().rate_bps
    assert point.step(BytesSent(CONFIG.increase_bytes - 1), at(1)) == []
    [change] = point.step(BytesSent(1), at(1))
    assert change == SetRate((before + LINE // 2) // 2)
    assert (point.view().timer_steps, point.view().byte_steps) == (0, 1)


def test_figure_7_hyper_increase_needs_more_than_five_steps_of_both() -> None:
    point = cut_twice()
    for step in range(1, 7):
        point.step(TimerExpired(), at(55 * step))
    targets = [point.view().target_bps]
    for _ in range(6):
        point.step(BytesSent(CONFIG.increase_bytes), at(340))
        targets.append(point.view().target_bps)
    grown = [after - before for before, after in pairwise(targets)]
    assert grown == [*5 * [CONFIG.additive_bps], CONFIG.hyper_bps]


def test_figure_7_a_notification_begins_all_counts_anew() -> None:
    point = cut_twice()
    point.step(TimerExpired(), at(55))
    point.step(BytesSent(CONFIG.increase_bytes + 7), at(60))
    point.step(CnpArrived(), at(60))
    view = point.view()
    assert (view.timer_steps, view.byte_steps, point.deadline) == (0, 0, at(115))
    assert point.step(BytesSent(CONFIG.increase_bytes - 1), at(61)) == []


def test_a_timer_that_is_served_late_counts_all_its_periods() -> None:
    late, on_time = cut_twice(), cut_twice()
    for step in range(1, 21):
        on_time.step(TimerExpired(), at(55 * step))
    late.step(TimerExpired(), at(55 * 20 + 3))
    assert late.view() == on_time.view()
    assert late.deadline == on_time.deadline == at(55 * 21)


def test_back_at_the_line_rate_nothing_holds_the_flow_back() -> None:
    point = cut_twice()
    changes: list[SetRate] = []
    for step in range(1, 10_000):
        changes += point.step(TimerExpired(), at(55 * step))
        if point.deadline is None:
            break
    assert changes[-1] == SetRate(None)
    assert (point.rate_bps, point.deadline) == (LINE, None)


def test_the_rate_is_never_below_the_least() -> None:
    point = ReactionPoint(CONFIG)
    for _ in range(100):
        point.step(CnpArrived(), at(0))
    assert point.rate_bps == CONFIG.rate_min_bps
    fixed = ReactionPoint(DcqcnConfig(line_rate_bps=10**6))
    assert fixed.step(CnpArrived(), at(0)) == []
    assert fixed.deadline is None, "it is the line rate"


# ---- both directions of a queue pair -------------------------------------------------------------


def test_frames_that_left_count_with_their_headers() -> None:
    flow = FlowCongestion(replace(CONFIG, increase_bytes=10 * (1024 + FRAME_OVERHEAD_BYTES)), 1024)
    flow.notified(at(0))
    assert flow.sent(9, at(1)) == []
    assert flow.sent(1, at(1)) == [SetRate(LINE * 3 // 4)]


def test_the_clock_that_was_woken_sleeps_for_its_quantum() -> None:
    flow = FlowCongestion(CONFIG, 1024, 200 * US)
    flow.notified(at(0))
    flow.woke(at(55))
    assert flow.earliest(None) == at(255)
    assert flow.earliest(at(254)) == at(254)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha_ns": 0},
        {"gain_parts": 1},
        {"line_rate_bps": 10**5},
        {"additive_bps": 0},
        {"hyper_bps": 0},
        {"cnp_ns": 0},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="DCQCN"):
        replace(CONFIG, **wrong)
    with pytest.raises(ConfigError, match="k_min <= k_max"):
        Marking(k_min_bytes=2, k_max_bytes=1)


def test_the_least_and_the_most_that_can_be() -> None:
    DcqcnConfig(**{field.name: 1 for field in fields(DcqcnConfig)} | {"gain_parts": 2})
    Marking(k_min_bytes=0, k_max_bytes=0, p_max_ppm=0)
    Marking(p_max_ppm=1_000_000)
