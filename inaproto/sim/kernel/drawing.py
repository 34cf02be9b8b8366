"""What several kinds of worlds draw alike."""

from __future__ import annotations

from inaproto.faults.streams import Draws
from inaproto.faults.weather import Weather
from inaproto.units import US


def draw_delays(draws: Draws) -> tuple[int, int]:
    """Least and greatest delay of a message."""
    least = draws.magnitude(5 * US, 200 * US)
    return least, draws.magnitude(least, 8 * least)


def draw_weather(draws: Draws, delay: int, *, drop: float, reorder: float, duplicate: float = 0) -> Weather:
    """Weather with these shares at most; what is late is so by ``delay`` at least."""

    def share(most: float) -> float:
        return draws.below(1 << 16) / (1 << 16) * most if draws.chance(2, 3) else 0.0

    return Weather(
        drop=share(drop),
        duplicate=share(duplicate) if duplicate else 0.0,
        reorder=share(reorder),
        delay_min_ns=delay,
        delay_max_ns=draws.magnitude(delay, 40 * delay),
    )


def draw_moment(draws: Draws, moments: tuple[str, ...], after: int, until: int) -> tuple[str, int]:
    """A mark after which a fault strikes, or none, and when: most strike at most ``after`` it."""
    moment = draws.choice(moments) if draws.chance(3, 5) else ""
    return moment, draws.magnitude(2 * US, after) if moment else draws.below(until)


def draw_occurrence(draws: Draws, moment: str, most: int) -> int:
    """For which time the mark must be set."""
    return draws.magnitude(1, most) if moment and draws.chance(2, 3) else 1
