"""A network without order, and jobs that come and go on it: drawn from a seed.

Time is counted in arrivals: a job that has hosts leaves after a drawn number of further ones. So what is
played on daemons can be played again without them, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Final

from inaproto_hil.rigs.irregular_network import Network

CAPACITIES: Final = ("1", "2", "3", "4", "6", "20/3")
"""Gbit/s."""
RATE_CAP: Final = Fraction(4)
JOBS_AT_ONCE: Final = 4
"""Slots of a switch are not what is short."""
HOSTS_MAX: Final = 5
STAYS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    name: str
    hosts: int
    stays: int
    """Arrivals after which it leaves, from when it has hosts."""


def network(seed: int, *, switches: int, hosts: int) -> Network:
    """Each switch has trunks to one to three of those before it; three of four add up, with
    the fabric's root, which must."""
    draw = Random(f"{seed}/network")
    names = [f"s{number}" for number in range(switches)]
    above: dict[str, tuple[str, ...]] = {names[0]: ()}
    for number, name in enumerate(names[1:], start=1):
        ups = draw.sample(range(number), min(number, draw.choice((1, 1, 2, 2, 3))))
        above[name] = tuple(names[up] for up in ups)
    adding = [0, *sorted(draw.sample(range(1, switches), 3 * switches // 4 - 1))]
    capacities = {names[number]: draw.choice(CAPACITIES) for number in adding}
    seats = tuple(draw.choice(names) for _ in range(hosts))
    return Network(above, capacities, seats, RATE_CAP, JOBS_AT_ONCE)


def arrivals(seed: int, count: int, *, hosts: int) -> Sequence[Arrival]:
    draw = Random(f"{seed}/arrivals")
    most = min(HOSTS_MAX, hosts)
    return tuple(
        Arrival(f"job{number}", draw.randint(2, most), draw.randint(1, STAYS_MAX)) for number in range(count)
    )
