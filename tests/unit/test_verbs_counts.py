"""What a message costs a host on a RoCE card, counted over a device that does nothing: exact everywhere.

Bounds are kept as in ``tests/unit/test_data_path_counts.py``.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Final

import pytest

from inaproto_hil.bench.verbs.device import StubbedDevice
from inaproto_hil.bench.verbs.host import Shape, StubbedHost
from tests.unit.counting import Calls, calls, run_counted

_SLACK: Final = 1.0 if sys.version_info[:2] == (3, 11) else 1.03
_OPERATIONS: Final = 3
_MESSAGES: Final = 32


def counted(window: int, wake_up: int) -> tuple[Calls, dict[str, float]]:
    """Calls of Python, and of the device, for the messages of the last all-reduce."""
    device = StubbedDevice(real=False)
    counts, found = Calls(), Counter[str]()

    async def run() -> None:
        nonlocal counts
        with device.installed():
            host = StubbedHost(Shape(window=window), device, _MESSAGES, copies=False)
            for done in range(_OPERATIONS):
                device.calls.clear()
                host.call()
                counts = Calls()
                while host.answer(wake_up):
                    with calls() as some:
                        host.take()
                    counts.functions.update(some.functions)
                    counts.others.update(some.others)
                assert host.process.done == done + 1
            found.update(device.calls)
            assert host.nic.poll() == []
            assert host.nic.queue_pair(host.ring.queue_pairs[0]).posted[0] == []
            host.ring.close()
            await host.nic.aclose()

    run_counted(run)
    return counts, {name: count / _MESSAGES for name, count in found.items()}


@pytest.mark.parametrize(
    ("window", "wake_up", "ours", "others", "device"),
    [
        (
            8,
            8,
            27.21875,
            47.59375,
            {"completions": 1.5, "poll": 0.125, "post_send": 0.125, "post_recv": 0.125},
        ),
        (8, 1, 56.6875, 70.875, {"completions": 1.5, "poll": 1, "post_send": 0.40625, "post_recv": 1}),
        (2, 1, 63.625, 77.875, {"completions": 2, "poll": 1, "post_send": 0.96875, "post_recv": 1}),
    ],
)
def test_calls_of_a_message(
    window: int, wake_up: int, ours: float, others: float, device: dict[str, float]
) -> None:
    counts, found = counted(window, wake_up)
    figures = counts.of() / _MESSAGES, counts.outside / _MESSAGES
    print(figures, found, counts.largest(30))
    assert found["writes"] == 1
    for name, bound in device.items():
        assert found[name] <= bound, (name, found)
    assert figures[0] <= ours * _SLACK, (figures, counts.largest())
    assert figures[1] <= others * _SLACK, (figures, counts.largest())
