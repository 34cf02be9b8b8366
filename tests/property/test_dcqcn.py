"""DCQCN under any order of events (docs/protocol.md 4.5): bounds of rate and alpha, and of notifications."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.rdma.dcqcn import (
    BytesSent,
    CnpArrived,
    DcqcnConfig,
    MarkedArrived,
    Marking,
    NotificationPoint,
    ReactionPoint,
    TimerExpired,
)
from inaproto.core.rdma.pacing import FRAME_OVERHEAD_BYTES, Pace, PaceConfig
from inaproto.units import US, Instant

CONFIGS = st.builds(
    DcqcnConfig,
    line_rate_bps=st.integers(10**6, 4 * 10**11),
    gain_parts=st.integers(2, 1024),
    alpha_ns=st.integers(1, 100) | st.integers(US, 300 * US),
    increase_ns=st.integers(US, 300 * US),
    increase_bytes=st.integers(1, 10**8),
    fast_recoveries=st.integers(1, 8),
    additive_bps=st.integers(10**6, 10**9),
    hyper_bps=st.integers(10**6, 10**10),
    cnp_ns=st.integers(1, 100 * US),
)
WAITS = st.integers(0, 10) | st.integers(0, 500 * US)


@given(
    config=CONFIGS,
    events=st.lists(
        st.tuples(
            WAITS,
            st.just(CnpArrived()) | st.just(TimerExpired()) | st.builds(BytesSent, st.integers(0, 10**6)),
        ),
        max_size=60,
    ),
)
def test_rates_and_alpha_stay_in_their_bounds(
    config: DcqcnConfig, events: list[tuple[int, CnpArrived | TimerExpired | BytesSent]]
) -> None:
    point, now, told = ReactionPoint(config), Instant(0), config.line_rate_bps
    for wait, event in events:
        now = Instant(now + wait)
        before = point.view()
        changes = point.step(event, now)
        view = point.view()
        assert config.rate_min_bps <= view.rate_bps <= config.line_rate_bps
        assert config.rate_min_bps <= view.target_bps <= config.line_rate_bps
        assert 0 <= view.alpha <= 1
        if isinstance(event, CnpArrived):
            assert view.rate_bps <= before.rate_bps == view.target_bps
        else:
            assert view.rate_bps >= before.rate_bps
        assert (point.deadline is None) == (view.rate_bps == config.line_rate_bps)
        assert point.deadline is None or isinstance(event, BytesSent | CnpArrived) or point.deadline > now
        for change in changes:
            told = config.line_rate_bps if change.rate_bps is None else change.rate_bps
        assert told == view.rate_bps, "whoever sends knows the rate"


@given(config=CONFIGS, cuts=st.integers(1, 30))
def test_without_notifications_every_flow_comes_back_to_the_line_rate(config: DcqcnConfig, cuts: int) -> None:
    config = replace(config, additive_bps=max(config.additive_bps, config.line_rate_bps // 500))
    point = ReactionPoint(config)
    for _ in range(cuts):
        point.step(CnpArrived(), Instant(0))
    steps = 40 + config.fast_recoveries + config.line_rate_bps // config.additive_bps
    point.step(TimerExpired(), Instant(steps * config.increase_ns))
    assert point.deadline is None


@given(config=CONFIGS, waits=st.lists(WAITS, max_size=60), serves=st.booleans())
def test_notifications_keep_their_interval_and_no_mark_is_forgotten(
    config: DcqcnConfig, waits: list[int], serves: bool
) -> None:
    point, now = NotificationPoint(config), Instant(0)
    said: list[int] = []
    marks: list[int] = []
    for wait in waits:
        now = Instant(now + wait)
        while serves and point.deadline is not None and point.deadline <= now:
            said += [point.deadline] * len(point.step(TimerExpired(), point.deadline))
        marks.append(now)
        said += [now] * len(point.step(MarkedArrived(), now))
    while point.deadline is not None:
        now = max(now, point.deadline)
        said += [now] * len(point.step(TimerExpired(), now))
    assert all(after - before >= config.cnp_ns for before, after in pairwise(said))
    assert len(said) <= len(marks)
    assert not marks or said[-1] >= marks[-1]


@given(
    k_min=st.integers(0, 10**6),
    more=st.integers(0, 10**6),
    p_max=st.integers(0, 10**6),
    queues=st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)),
)
def test_a_longer_queue_marks_no_less(k_min: int, more: int, p_max: int, queues: tuple[int, int]) -> None:
    marking = Marking(k_min_bytes=k_min, k_max_bytes=k_min + more, p_max_ppm=p_max)
    shorter, longer = (marking.chance_ppm(queue) for queue in sorted(queues))
    assert 0 <= shorter <= longer <= 10**6


@given(
    packet=st.integers(1, 4096),
    burst=st.integers(0, 100_000),
    quantum=st.integers(0, 1000 * US),
    steps=st.lists(st.tuples(WAITS, st.integers(10**6, 10**11)), min_size=1, max_size=40),
)
def test_a_flow_never_sends_more_than_its_rates_and_one_burst(
    packet: int, burst: int, quantum: int, steps: list[tuple[int, int]]
) -> None:
    now = Instant(0)
    pace = Pace(PaceConfig(burst_bytes=burst, quantum_ns=quantum), packet, steps[0][1], now)
    frame, sent, paid = (packet + FRAME_OVERHEAD_BYTES) * 8, 0, 0
    for wait, rate in steps:
        now = Instant(now + wait)
        paid += pace.rate_bps * wait
        packets = pace.packets(now)
        pace.spend(packets)
        sent += packets
        assert sent * frame * 10**9 <= paid
        assert pace.packets(now) == 0
        pace.set_rate(rate, now)
        assert pace.ready_at() > now or pace.packets(now)
