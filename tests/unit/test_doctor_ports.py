"""Which kind of port ``inaproto doctor`` says an interface can have."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.doctor.checklist import all_checks
from inaproto.doctor.findings import Outcome
from inaproto_adapters.frames.checks import PORTS, linux, look_at_port

GOOD: dict[str, Any] = {
    "machine": "x86_64",
    "release": "6.1.0-18-amd64",
    "mtu": 1500,
    "queues": 4,
    "has_device": True,
}


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({}, Outcome.OK, "xdp:eth1, zero-copy or copied by the driver"),
        ({"has_device": False}, Outcome.OK, "CAP_BPF) passes each by itself, copied by the kernel"),
        ({"mtu": 3822, "queues": 8}, Outcome.OK, "xdp:eth1"),
        ({"mtu": 3823}, Outcome.OK, "packet:eth1 alone at MTU 3823; xdp: takes up to 3822"),
        ({"mtu": None}, Outcome.UNTESTABLE, "MTU"),
        ({"queues": 9}, Outcome.WARNING, "9 queues"),
        ({"release": "5.8.18"}, Outcome.OK, "packet:eth1 alone; xdp: takes Linux 5.9"),
        ({"machine": "aarch64"}, Outcome.OK, "packet:eth1 alone"),
    ],
)
def test_what_an_interface_can_have(changes: dict[str, Any], outcome: Outcome, words: str) -> None:
    found = look_at_port("eth1", **GOOD | changes)
    assert found.outcome is outcome
    assert words in found.found
    if outcome is Outcome.WARNING:
        assert found.mend == "ethtool -L eth1 combined 8"


@pytest.mark.parametrize(
    ("release", "numbers"),
    [("6.18.44-fc", (6, 18)), ("5.9", (5, 9)), ("4.19.0", (4, 19)), ("", (0,)), ("x.y", (0, 0))],
)
def test_kernels_are_compared_by_number(release: str, numbers: tuple[int, ...]) -> None:
    assert linux(release) == numbers


def test_it_is_one_of_all_checks() -> None:
    assert PORTS in all_checks()
