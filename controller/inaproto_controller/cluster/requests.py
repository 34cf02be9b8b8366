"""Streams of job requests, as MINA's evaluation draws them (section V-A): model, hosts, steps.

The ten published streams have one generator each, the "minimal standard" of Park and Miller with multiplier
48271, and one histogram of host counts each; models and steps are drawn alike in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from inaproto_controller.cluster.model import EVALUATED

SEED: Final = 42
_MODULUS: Final = (1 << 31) - 1
_MULTIPLIER: Final = 48271
_SPAN: Final = _MODULUS - 1
"""How many values a draw has."""
_STEPS: Final = 10

HISTOGRAMS: Final[dict[int, dict[int, int]]] = {
    1: {1: 10910, 2: 9719, 4: 16374, 8: 23311, 16: 23936, 32: 13268, 48: 2089, 64: 329, 128: 61},
    2: {1: 26464, 2: 19460, 4: 24834, 8: 20690, 16: 7818, 32: 725, 48: 5},
    3: {1: 44237, 2: 14757, 4: 18831, 8: 15689, 16: 5929, 32: 550, 48: 4},
    4: {1: 41606, 2: 15453, 4: 19720, 8: 16430, 16: 6208, 32: 576, 48: 4},
    5: {1: 36941, 2: 16688, 4: 21295, 8: 17742, 16: 6704, 32: 622, 48: 4},
    6: {1: 26464, 2: 19460, 4: 24834, 8: 20690, 16: 7818, 32: 725, 48: 5},
    7: {2: 36941, 4: 28960, 8: 24127, 16: 9117, 32: 846, 48: 6},
    8: {2: 26464, 4: 33771, 8: 28136, 16: 10632, 32: 986, 48: 7},
    9: {4: 26464, 8: 52033, 16: 19663, 32: 1824, 48: 13},
    10: {8: 26464, 16: 67247, 32: 6241, 48: 45},
}
"""Weights of host counts, by number of the trace."""


class Request(NamedTuple):
    model: str
    hosts: int
    steps: int


class MinimalStandard:
    """Integers and shares of one, from a seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed % _MODULUS or 1

    def _draw(self) -> int:
        self._state = self._state * _MULTIPLIER % _MODULUS
        return self._state - 1

    def below(self, count: int) -> int:
        """Uniform over ``count`` numbers; draws anew what would favour some."""
        bits = (count - 1).bit_length()
        limit = (_SPAN >> bits) << bits
        while True:
            drawn = self._draw()
            if drawn >= limit:
                continue
            drawn &= (1 << bits) - 1
            if drawn < count:
                return drawn

    def share(self) -> float:
        """In [0, 1)."""
        low = self._draw()
        return (low + self._draw() * float(_SPAN)) / (float(_SPAN) * float(_SPAN))


def draw_requests(
    histogram: dict[int, int], count: int, *, seed: int = SEED, models: Sequence[str] = EVALUATED
) -> list[Request]:
    """``count`` requests; of each its model first, then its hosts, then its steps."""
    stream = MinimalStandard(seed)
    total = float(sum(histogram.values()))
    shares = [weight / total for weight in histogram.values()]
    bounds = list(zip(accumulate(shares), histogram, strict=True))
    last = bounds[-1][1]
    requests = []
    for _ in range(count):
        model = models[stream.below(len(models))]
        share = stream.share()
        hosts = next((hosts for bound, hosts in bounds if bound > share), last)
        requests.append(Request(model, hosts, _STEPS * (1 + stream.below(_STEPS))))
    return requests
