"""Memory of the frames that a NIC sends (``inaproto.core.kernels.messages.Departures``)."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core import kernels
from inaproto.core.kernels import messages
from inaproto.core.kernels.messages import Departures
from inaproto.units import Frames

pytestmark = pytest.mark.usefixtures("compiled_kernels")
MTU = 1024
HEADER = np.zeros(54, np.uint8)
PAYLOAD = np.arange(10 * MTU, dtype=np.uint16).astype(np.uint8)


def departures(*, reuses: bool) -> Departures:
    compiled = kernels.active()
    assert compiled is not None
    return Departures(compiled, reuses=reuses)


def build(made: Departures, packets: int = 10, psn: int = 0) -> list[Frames]:
    return made.build(
        HEADER.ctypes.data,
        (PAYLOAD.ctypes.data, packets * MTU),
        psn=psn,
        ip_id=0,
        first=0,
        count=packets,
        packets=packets,
        mtu=MTU,
        nbytes=packets * MTU,
        asking=range(0),
        reth=(0, 0),
        imm=7,
    )


def overlap(one: list[Frames], other: list[Frames]) -> bool:
    return any(np.shares_memory(a, b) for a in one for b in other)


def test_messages_of_one_output_lie_apart() -> None:
    made = departures(reuses=True)
    sent = [build(made, psn=number) for number in range(4)]
    kept = [[frames.copy() for frames in message] for message in sent]
    assert not any(overlap(one, other) for i, one in enumerate(sent) for other in sent[:i])
    for message, copies in zip(sent, kept, strict=True):
        assert all((frames == copy).all() for frames, copy in zip(message, copies, strict=True))


def test_their_memory_is_used_again_after_a_reset_and_only_then() -> None:
    made = departures(reuses=True)
    first, second = build(made), build(made)
    made.reset()
    third, fourth = build(made), build(made)
    assert all(a is b for a, b in zip(first + second, third + fourth, strict=True))


def test_what_has_no_room_there_gets_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_REUSED_BYTES", 12 * MTU)
    made = departures(reuses=True)
    sent = [build(made), build(made), build(made)]
    assert not any(overlap(one, other) for i, one in enumerate(sent) for other in sent[:i])
    assert all(len(message) == 3 for message in sent)


def test_messages_of_many_lengths_are_cut_anew_when_too_many_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_CUTS_MAX", 2)
    made = departures(reuses=True)
    for packets in (3, 4, 5, 3, 4, 5):
        made.reset()
        assert [frames.shape for frames in build(made, packets)] == [
            (1, 74 + MTU),
            (packets - 2, 58 + MTU),
            (1, 62 + MTU),
        ]
        assert len(made._cuts) <= 2


def test_frames_are_nobody_elses_where_they_are_kept() -> None:
    """Whoever delivers them later, as the simulated worlds do."""
    made = departures(reuses=False)
    first = build(made)
    made.reset()
    assert not overlap(first, build(made))
