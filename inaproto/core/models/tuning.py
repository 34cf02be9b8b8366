"""Staleness and in-degree chosen at run time, from load and from convergence (MLNet section 5, future work).

The root looks at its model every few clocks (``Look``) and asks two tuners. Each changes its number by one
step at a time, says why (``Decision``), and keeps still unless several looks in a row agree: measurements of
one look are noise, and a change costs more than a bad number does for a while.

**Staleness.** It is worth something when workers wait for each other, and harmless while the weights move
little: weights that are s clocks old differ from new ones by about s times what they change in a clock. So:

- *drift*: s x change above twice the tolerance lowers s at once, to what the tolerance allows;
- *waits*: workers wait much of the time, and s + 1 is within the tolerance: s + 1;
- *calm*: hardly anybody waits: s - 1, which costs nothing then.

Between the two thresholds of waiting nothing is changed, nor between once and twice the tolerance.

**In-degree.** More children make the tree flatter and load a node's link more:

- *link*: workers wait and the busiest link is nearly full: the next smaller in-degree;
- *height*: workers wait and no link is: the next greater one;
- *worse*: a clock lasts noticeably longer than before the last change: back, and for a while not that way
  again.

Invariants: a number stays in its bounds; two changes are at least ``agreed`` looks apart, but for *drift*;
equal looks give equal decisions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from inaproto.errors import LocalMisuse

_PERMILLE: Final = 1000


@dataclass(frozen=True, slots=True)
class Look:
    """What the root measured since the last one; shares in thousandths."""

    clocks: int
    """c_model now."""
    lasted_ns: int
    """A clock, in the mean."""
    waited_permille: int
    """Share of the time in which a pull waited for others' clocks."""
    link_permille: int
    """How full the busiest receiving link of the tree was."""
    change_ppm: int
    """How far the weights moved in a clock, in the mean, in millionths of their length (2-norm)."""

    def __post_init__(self) -> None:
        if (
            min(self.clocks, self.waited_permille, self.link_permille, self.change_ppm) < 0
            or self.lasted_ns < 1
        ):
            raise LocalMisuse(f"a look measures nothing below 0: {self}")


@dataclass(frozen=True, slots=True)
class Decision:
    """``what`` goes from ``old`` to ``new``; ``why`` has the figures, for the log."""

    what: str
    old: int
    new: int
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class StalenessTuning:
    staleness_min: int = 0
    staleness_max: int = 8
    drift_ppm_max: int = 20_000
    """The tolerance: by how much old weights may differ from new ones, in millionths of their length."""
    waited_much_permille: int = 300
    waited_little_permille: int = 100
    agreed: int = 3
    """Looks in a row."""

    def __post_init__(self) -> None:
        if not 0 <= self.staleness_min <= self.staleness_max or self.drift_ppm_max < 1:
            raise LocalMisuse(f"tuning of staleness: bounds that nothing is between: {self}")
        _check_thresholds(self.waited_little_permille, self.waited_much_permille, self.agreed)


@dataclass(frozen=True, slots=True)
class DegreeTuning:
    degrees: tuple[int, ...] = (2, 4, 8, 16)
    """In-degrees to choose from, ascending."""
    waited_much_permille: int = 300
    link_full_permille: int = 850
    link_idle_permille: int = 400
    worse_permille: int = 100
    """How much longer a clock must last after a change for it to be taken back."""
    agreed: int = 3
    barred_looks: int = 30
    """For which the way that made it worse is not tried again."""

    def __post_init__(self) -> None:
        if not self.degrees or min(self.degrees) < 1 or list(self.degrees) != sorted(set(self.degrees)):
            raise LocalMisuse(f"in-degrees to choose from ascend from 1 on: {self.degrees}")
        if min(self.worse_permille, self.barred_looks) < 1:
            raise LocalMisuse(f"tuning of the in-degree: a number that is too small: {self}")
        _check_thresholds(self.link_idle_permille, self.link_full_permille, self.agreed)


def _check_thresholds(low: int, high: int, agreed: int) -> None:
    if not 0 <= low < high <= _PERMILLE or agreed < 1:
        raise LocalMisuse(
            f"thresholds {low} and {high} of 1000 leave no room between, or {agreed} looks agree"
        )


def _waited(look: Look) -> str:
    return f"at clock {look.clocks}: pulls waited {look.waited_permille / 10:.1f} % of the time"


class _Agreement:
    """How many looks in a row asked for the same; anything else begins anew."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._asked = ""
        self._times = 0

    def reached(self, asked: str) -> bool:
        """``asked`` is the rule that would change something; empty: none would."""
        self._times = self._times + 1 if asked == self._asked else 1
        self._asked = asked
        if not asked or self._times < self._needed:
            return False
        self._times = 0
        return True


class StalenessTuner:
    """s of one model's trees; see the module."""

    def __init__(self, tuning: StalenessTuning, staleness: int) -> None:
        if not tuning.staleness_min <= staleness <= tuning.staleness_max:
            raise LocalMisuse(f"staleness {staleness} is not in the bounds of its tuning {tuning}")
        self._tuning = tuning
        self._agreement = _Agreement(tuning.agreed)
        self.staleness = staleness

    def step(self, look: Look) -> Decision | None:
        """What to change after this look, if anything."""
        tuning, old = self._tuning, self.staleness
        if old * look.change_ppm > 2 * tuning.drift_ppm_max and old > tuning.staleness_min:
            self._agreement.reached("")
            return self._decide(max(tuning.staleness_min, self._allowed(look)), "drift", look)
        waits = look.waited_permille > tuning.waited_much_permille
        calm = look.waited_permille < tuning.waited_little_permille
        if waits and old < min(tuning.staleness_max, self._allowed(look)):
            rule, new = "waits", old + 1
        elif calm and old > tuning.staleness_min:
            rule, new = "calm", old - 1
        else:
            rule, new = "", old
        return self._decide(new, rule, look) if self._agreement.reached(rule) else None

    def _allowed(self, look: Look) -> int:
        """Greatest s that the tolerance allows."""
        if not look.change_ppm:
            return self._tuning.staleness_max
        return min(self._tuning.staleness_max, self._tuning.drift_ppm_max // look.change_ppm)

    def _decide(self, new: int, rule: str, look: Look) -> Decision:
        old, self.staleness = self.staleness, new
        why = (
            f"{_waited(look)}, weights moved {look.change_ppm / 10_000:.3f} % a clock"
            f" (to be at most {self._tuning.drift_ppm_max / 10_000:.3f} % stale)"
        )
        return Decision("staleness", old, new, rule, why)


class DegreeTuner:
    """In-degree d of one model's trees; see the module."""

    def __init__(self, tuning: DegreeTuning, degree: int) -> None:
        if degree not in tuning.degrees:
            raise LocalMisuse(f"in-degree {degree} is none of {tuning.degrees}")
        self._tuning = tuning
        self._agreement = _Agreement(tuning.agreed)
        self._at = tuning.degrees.index(degree)
        self._lasted: deque[int] = deque(maxlen=tuning.agreed)
        """Clocks of the last looks, all since the last change."""
        self._before: int | None = None
        """How long a clock lasted before the last change; None once that has been judged."""
        self._way = 0
        """Direction of the last change: -1 or 1."""
        self._barred: dict[int, int] = {}
        """Ways, and the looks for which they stay so."""

    @property
    def degree(self) -> int:
        return self._tuning.degrees[self._at]

    def step(self, look: Look) -> Decision | None:
        """What to change after this look, if anything."""
        self._barred = {way: looks - 1 for way, looks in self._barred.items() if looks > 1}
        self._lasted.append(look.lasted_ns)
        if len(self._lasted) < self._tuning.agreed:
            return None
        if self._before is not None:
            before, self._before = self._before, None
            if self._median() * _PERMILLE > before * (_PERMILLE + self._tuning.worse_permille):
                self._barred[self._way] = self._tuning.barred_looks
                lasted = f"a clock lasts {self._median() / 1e6:.3f} ms, before it was {before / 1e6:.3f} ms"
                return self._decide(-self._way, "worse", f"at clock {look.clocks}: {lasted}")
        rule, way = self._rule(look)
        if not self._agreement.reached(rule):
            return None
        self._before = self._median()
        link = f"the busiest link was {look.link_permille / 10:.1f} % full"
        return self._decide(way, rule, f"{_waited(look)}, {link}")

    def _rule(self, look: Look) -> tuple[str, int]:
        tuning = self._tuning
        if look.waited_permille <= tuning.waited_much_permille:
            return "", 0
        if look.link_permille >= tuning.link_full_permille:
            rule, way = "link", -1
        elif look.link_permille <= tuning.link_idle_permille:
            rule, way = "height", 1
        else:
            return "", 0
        is_possible = 0 <= self._at + way < len(tuning.degrees) and way not in self._barred
        return (rule, way) if is_possible else ("", 0)

    def _median(self) -> int:
        return sorted(self._lasted)[len(self._lasted) // 2]

    def _decide(self, way: int, rule: str, why: str) -> Decision:
        old = self.degree
        self._at += way
        self._way = way
        self._lasted.clear()
        return Decision("in-degree", old, self.degree, rule, why)
