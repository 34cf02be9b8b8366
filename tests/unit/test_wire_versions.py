"""Which version of the control protocol two sides speak (docs/protocol.md 1.3)."""

from __future__ import annotations

import pytest

from inaproto.errors import DecodeError
from inaproto.wire import control
from inaproto.wire.control import OtherRelease, decode_control, encode_control
from inaproto.wire.control_messages import Dialogue, Ping, Pong, encode_message


class Side:
    """One of two, whose release speaks from ``oldest`` to ``newest``."""

    def __init__(
        self, patch: pytest.MonkeyPatch, oldest: int, newest: int, *, says_newest: bool = True
    ) -> None:
        self._patch, self._range = patch, (oldest, newest)
        self._says_newest = says_newest
        self._dialogue = Dialogue()

    def _speak(self) -> None:
        self._patch.setattr(control, "OLDEST", self._range[0])
        self._patch.setattr(control, "NEWEST", self._range[1])
        if self._dialogue.version < self._range[0]:
            self._dialogue = Dialogue()

    def say(self) -> bytes:
        self._speak()
        return self._dialogue.encode(Ping(id=1)) if self._says_newest else encode_message(Ping(id=1))

    def hear(self, data: bytes) -> int:
        """The version in which that was said."""
        self._speak()
        assert list(self._dialogue.decode(data)) == [Ping(id=1)]
        version = decode_control(data[4:])["v"]
        assert isinstance(version, int)
        return version


@pytest.mark.parametrize(
    ("mine", "its", "both"),
    [((1, 1), (1, 1), 1), ((1, 2), (1, 2), 2), ((1, 2), (2, 3), 2), ((1, 3), (1, 2), 2), ((2, 2), (1, 4), 2)],
)
def test_both_speak_the_newest_that_they_have_in_common(
    monkeypatch: pytest.MonkeyPatch, mine: tuple[int, int], its: tuple[int, int], both: int
) -> None:
    one, other = Side(monkeypatch, *mine), Side(monkeypatch, *its)
    if mine[0] >= its[0]:  # else the first word is too old for the other, which says so
        assert other.hear(one.say()) == mine[0]
        assert one.hear(other.say()) == both
    else:
        assert one.hear(other.say()) == its[0]
    assert other.hear(one.say()) == both
    assert one.hear(other.say()) == both


def test_with_a_release_that_says_no_newest_the_oldest_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Side(monkeypatch, 1, 2), Side(monkeypatch, 1, 1, says_newest=False)
    assert other.hear(one.say()) == 1
    assert one.hear(other.say()) == 1
    assert other.hear(one.say()) == 1


def test_a_version_outside_the_range_is_refused_with_both_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "OLDEST", 2)
    monkeypatch.setattr(control, "NEWEST", 3)
    with pytest.raises(OtherRelease, match="it speaks version 1 of the control protocol, this side 2 to 3"):
        decode_control(encode_control("ping", 1, 2)[4:].replace(b"\xa1v\x02", b"\xa1v\x01"))


@pytest.mark.parametrize("newest", [-1, 1 << 16, "2", 1.0, True])
def test_a_newest_version_that_is_none_is_refused(newest: object) -> None:
    data = encode_control("ping", 1, 0, newest)  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="v_max"):
        list(Dialogue().decode(data))


def test_the_newest_is_said_once() -> None:
    dialogue = Dialogue()
    assert "v_max" in decode_control(dialogue.encode(Pong(id=1))[4:])
    assert "v_max" not in decode_control(dialogue.encode(Pong(id=1))[4:])
