"""What an accelerator says of a ring is the same at the control plane."""

from __future__ import annotations

import pytest

from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.daemon.switch.ring_orders import message_of, said_by
from inaproto.wire.messages.switch import InstallRefused, RingFaulted


@pytest.mark.parametrize(
    "said",
    [
        RingRefused(7, "needs 9 bytes of memory, 3 are free"),
        RingRefused(7, "needs 9 bytes of memory, it has 3 in all", until_switch=True),
        RingFault(7, 1, "packet layout", "a stray"),
    ],
)
def test_there_and_back(said: RingFault | RingRefused) -> None:
    message = message_of(said)
    assert isinstance(message, InstallRefused | RingFaulted)
    assert said_by("leaf0", message) == said
