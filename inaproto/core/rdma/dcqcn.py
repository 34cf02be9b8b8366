"""DCQCN: congestion control of RoCE flows by rates, without a clock.

Y. Zhu et al., *Congestion Control for Large-Scale RDMA Deployments*, SIGCOMM 2015, doi
10.1145/2785956.2787484, section 3.1. It is the congestion control of the NICs that NetReduce (section 3.2)
leaves congestion to. Three parts:

* The *congestion point*, a port of a switch, marks packets by the length of its queue (:class:`Marking`).
* The *notification point*, the NIC that gets marked packets of a flow, answers them by congestion
  notification packets (CNP), one in ``cnp_ns`` at most (:class:`NotificationPoint`).
* The *reaction point*, the NIC that sends the flow, has a rate for it (:class:`ReactionPoint`). A flow starts
  at the line rate. A CNP makes the present rate the target, cuts the rate by ``alpha / 2`` and lets ``alpha``
  grow; each ``alpha_ns`` without one lets it shrink. A timer and a counter of bytes, each by itself, make the
  rate grow: half way to the target (fast recovery), and after ``fast_recoveries`` such steps of either the
  target grows, too (additive increase), after as many of both by more (hyper increase).

Invariants:
1. ``rate_min_bps <= rate <= line_rate_bps``, and the same of the target.
2. ``0 <= alpha <= 1``.
3. Between two CNPs of a flow there are at least ``cnp_ns``.
4. There is a deadline exactly while the rate is below the line rate, or a CNP is owed.

Departures. The paper gives no least rate and no step of hyper increase: see ``rate_min_bps``, ``hyper_bps``.
``alpha`` shrinks when it is looked at, by all periods that have passed, which is the same and needs no timer.
A flow that is back at the line rate has no timers until the next CNP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from inaproto.errors import ConfigError
from inaproto.units import US, Instant

_NO_ALPHA: Final = 2.0**-40
"""A smaller alpha cuts no rate by one bit a second."""
_PPM: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DcqcnConfig:
    """What NICs of both ends are told. The defaults are the published ones, of links of 40 Gbit/s."""

    line_rate_bps: int = 40 * 10**9
    """The rate of the link; 40 Gbit/s in the testbed (section 6)."""
    rate_min_bps: int = 10**6
    """The paper has none; that of ConnectX NICs (``rpg_min_rate``)."""
    gain_parts: int = 256
    """``g`` = 1/256 (figure 14)."""
    alpha_ns: int = 55 * US
    """``K`` (section 3.1)."""
    increase_ns: int = 55 * US
    """``T``, the timer (figure 14)."""
    increase_bytes: int = 10 * 10**6
    """``B``, the counter of bytes (figure 14)."""
    fast_recoveries: int = 5
    """``F`` (table 1)."""
    additive_bps: int = 40 * 10**6
    """``R_AI`` (table 1)."""
    hyper_bps: int = 400 * 10**6
    """The paper gives no value; ten times ``R_AI``, as those of ConnectX NICs are (``rpg_hai_rate``)."""
    cnp_ns: int = 50 * US
    """``N`` (section 3.1)."""

    def __post_init__(self) -> None:
        for name in (
            "alpha_ns",
            "increase_ns",
            "increase_bytes",
            "fast_recoveries",
            "cnp_ns",
            "rate_min_bps",
            "additive_bps",
            "hyper_bps",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"DCQCN: {name} must be at least 1, not {getattr(self, name)}")
        if self.gain_parts < 2:
            raise ConfigError(f"DCQCN: gain_parts must be at least 2, not {self.gain_parts}")
        if not self.rate_min_bps <= self.line_rate_bps:
            raise ConfigError(f"DCQCN: line_rate_bps {self.line_rate_bps} is below {self.rate_min_bps}")


# ---- congestion point ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """Which packets a port marks (section 3.1, figure 5). The defaults are those of figure 14."""

    k_min_bytes: int = 5_000
    k_max_bytes: int = 200_000
    p_max_ppm: int = 10_000
    """Share of packets that are marked just below ``k_max_bytes``: 1 %."""

    def __post_init__(self) -> None:
        if not 0 <= self.k_min_bytes <= self.k_max_bytes or not 0 <= self.p_max_ppm <= _PPM:
            raise ConfigError(f"marking: 0 <= k_min <= k_max and p_max of 0 to {_PPM}: {self}")

    def chance_ppm(self, queue_bytes: int) -> int:
        """How many of a million packets are marked that find so many bytes before them."""
        if queue_bytes <= self.k_min_bytes:
            return 0
        if queue_bytes > self.k_max_bytes:
            return _PPM
        return self.p_max_ppm * (queue_bytes - self.k_min_bytes) // (self.k_max_bytes - self.k_min_bytes)


# ---- notification point --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MarkedArrived:
    """Packets of the flow came, and one of them at least had a mark."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The deadline may have passed; too early a call does nothing."""


@dataclass(frozen=True, slots=True)
class SendCnp:
    """Tell the sender of the flow."""


class NotificationPoint:
    """Says when the sender of one flow is told of marks (section 3.1, figure 6)."""

    def __init__(self, config: DcqcnConfig) -> None:
        self._interval_ns = config.cnp_ns
        self._quiet_until: Instant | None = None
        self._is_owed = False

    @property
    def deadline(self) -> Instant | None:
        return self._quiet_until if self._is_owed else None

    def step(self, event: MarkedArrived | TimerExpired, now: Instant) -> list[SendCnp]:
        match event:
            case MarkedArrived():
                self._is_owed = True
            case TimerExpired():
                pass
            case _:
                assert_never(event)
        if not self._is_owed or (self._quiet_until is not None and now < self._quiet_until):
            return []
        self._is_owed = False
        self._quiet_until = Instant(now + self._interval_ns)
        return [SendCnp()]


# ---- reaction point ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CnpArrived:
    """The receiver of the flow has seen marks."""


@dataclass(frozen=True, slots=True)
class BytesSent:
    """So many bytes of the flow have left."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class SetRate:
    """The flow's rate is another one; None: nothing holds it back but the link."""

    rate_bps: int | None


@dataclass(frozen=True, slots=True)
class ReactionView:
    rate_bps: int
    target_bps: int
    alpha: float
    timer_steps: int
    """Times that the timer has passed since the last cut."""
    byte_steps: int
    """Times that the counter of bytes was full since then."""


class ReactionPoint:
    """The rate of one flow (section 3.1, figure 7)."""

    def __init__(self, config: DcqcnConfig) -> None:
        self._config = config
        self._gain = 1 / config.gain_parts
        self._rate = self._target = config.line_rate_bps
        self._alpha = 1.0
        self._alpha_due: Instant | None = None
        self._increase_due: Instant | None = None
        self._timer_steps = self._byte_steps = 0
        self._bytes = 0

    @property
    def deadline(self) -> Instant | None:
        return self._increase_due

    @property
    def rate_bps(self) -> int:
        return self._rate

    def view(self) -> ReactionView:
        return ReactionView(self._rate, self._target, self._alpha, self._timer_steps, self._byte_steps)

    def step(self, event: CnpArrived | BytesSent | TimerExpired, now: Instant) -> list[SetRate]:
        before = self._rate
        match event:
            case CnpArrived():
                self._cut(now)
            case BytesSent(nbytes):
                self._count(nbytes)
            case TimerExpired():
                self._expire(now)
            case _:
                assert_never(event)
        if self._rate == before:
            return []
        return [SetRate(self._rate if self._rate < self._config.line_rate_bps else None)]

    def _cut(self, now: Instant) -> None:
        """Equation (1)."""
        config = self._config
        self._let_alpha_shrink(now)
        self._target = self._rate
        self._rate = max(config.rate_min_bps, int(self._rate * (1 - self._alpha / 2)))
        self._alpha = (1 - self._gain) * self._alpha + self._gain
        self._alpha_due = Instant(now + config.alpha_ns)
        self._timer_steps = self._byte_steps = self._bytes = 0
        is_limited = self._rate < config.line_rate_bps
        self._increase_due = Instant(now + config.increase_ns) if is_limited else None

    def _let_alpha_shrink(self, now: Instant) -> None:
        """Equation (2), for each period that has passed."""
        if self._alpha_due is None:
            return
        while self._alpha_due <= now and self._alpha:
            self._alpha_due = Instant(self._alpha_due + self._config.alpha_ns)
            self._alpha *= 1 - self._gain
            if self._alpha < _NO_ALPHA:
                self._alpha = 0.0

    def _count(self, nbytes: int) -> None:
        if self._increase_due is None:
            return
        self._bytes += nbytes
        while self._bytes >= self._config.increase_bytes and self._increase_due is not None:
            self._bytes -= self._config.increase_bytes
            self._byte_steps += 1
            self._increase()

    def _expire(self, now: Instant) -> None:
        while self._increase_due is not None and self._increase_due <= now:
            self._increase_due = Instant(self._increase_due + self._config.increase_ns)
            self._timer_steps += 1
            self._increase()

    def _increase(self) -> None:
        """Fast recovery, additive or hyper increase: equations (3) and (4), figure 7."""
        config = self._config
        if max(self._timer_steps, self._byte_steps) >= config.fast_recoveries:
            is_hyper = min(self._timer_steps, self._byte_steps) > config.fast_recoveries
            more = config.hyper_bps if is_hyper else config.additive_bps
            self._target = min(self._target + more, config.line_rate_bps)
        self._rate = (self._rate + self._target + 1) // 2
        if self._rate >= config.line_rate_bps:
            self._increase_due = None
