"""The table of a phased core: one handler for each phase and event."""

from __future__ import annotations

from enum import Enum

import pytest

from inaproto.core.contract import Handlers
from inaproto.errors import LocalMisuse


class Phase(Enum):
    SHUT = "shut"
    OPEN = "open"


def table() -> Handlers[Phase, str, str]:
    handlers: Handlers[Phase, str, str] = Handlers()
    handlers.on(int, lambda door, event: [f"{door}: {event}"], Phase.OPEN)
    handlers.on(str, lambda door, event: [f"{door} hears {event}"], Phase.OPEN, Phase.SHUT)
    return handlers


def test_an_event_goes_to_the_handler_of_its_phase_and_type() -> None:
    assert table().step(Phase.OPEN, "door", 5) == ["door: 5"]
    assert table().step(Phase.SHUT, "door", "a knock") == ["door hears a knock"]
    assert list(table()) == [(Phase.OPEN, int), (Phase.OPEN, str), (Phase.SHUT, str)]


def test_an_event_has_one_handler_in_each_phase() -> None:
    with pytest.raises(LocalMisuse, match=r"int in Phase\.OPEN has two handlers"):
        table().on(int, lambda door, event: [], Phase.SHUT, Phase.OPEN)
    with pytest.raises(KeyError):
        table().step(Phase.SHUT, "door", 5)


def test_where_an_event_may_lead_is_said() -> None:
    handlers = table()
    handlers.on(float, lambda door, event: [], Phase.OPEN, to=(Phase.SHUT, None))
    assert handlers.leads_to(Phase.OPEN, float) == (Phase.SHUT, None)
    assert handlers.leads_to(Phase.OPEN, int) == ()
