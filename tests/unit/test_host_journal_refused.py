"""Journals that no daemon has left so are refused, whoever wrote them, and nothing else happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from inaproto.core.host import journal as layout
from inaproto.core.host.config import HostConfig
from inaproto.core.host.job import HostJob
from inaproto.core.host.journal import Journal, JournalRefused, Past, PrivateArena, read_journal
from inaproto.core.host.operations import VOTE
from inaproto.errors import LocalMisuse
from inaproto.units import Instant
from inaproto.wire.control_messages import encode_message
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.messages.client import Leave
from tests.unit.journal_scenario import (
    TENSOR_BYTES,
    Daemon,
    Processes,
    Stores,
    join,
)

WINDOW = 2


class Image:
    """The memory of a daemon that was stopped in the middle, to be changed byte by byte."""

    def __init__(self) -> None:
        processes, arena = Processes(), PrivateArena()
        daemon = Daemon(processes, arena, Stores(), WINDOW)
        for step, _ in zip(daemon.script(), range(14), strict=False):
            assert step
        end = max(area.at + len(area.view) for area in arena.areas)
        self.arena = PrivateArena()
        self.memory = self.arena.allocate(end).view
        for area in arena.areas:
            self.memory[area.at : area.at + len(area.view)] = area.view
        self.layout = layout._Layout(WINDOW, TENSOR_BYTES)
        past = self.read()
        assert past.kept
        assert past.progress > WINDOW
        self.past = past

    def read(self) -> Past:
        return read_journal(self.arena, window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)

    def word(self, at: int) -> int:
        return int.from_bytes(self.memory[at : at + 8], "little")

    def write(self, at: int, word: int) -> None:
        self.memory[at : at + 8] = word.to_bytes(8, "little")

    def record(self, serial: int, field: int) -> int:
        return self.layout.records_at + serial % (WINDOW + 2) * 40 + 8 * field

    def operation(self, serial: int, field: int) -> int:
        return self.layout.operations_at + self.word(self.record(serial, 0)) * 48 + 8 * field

    @property
    def facts_at(self) -> int:
        return self.layout.facts_at + (self.word(layout._FACTS_AT) - 1) * (layout.FACTS_BYTES_MAX + 8)

    @property
    def facts(self) -> dict[str, Any]:
        at = self.facts_at
        found: dict[str, Any] = msgpack.unpackb(self.memory[at + 8 : at + 8 + self.word(at)])
        return found

    @facts.setter
    def facts(self, facts: Any) -> None:
        packed = facts if isinstance(facts, bytes) else msgpack.packb(facts)
        self.write(self.facts_at, len(packed))
        self.memory[self.facts_at + 8 : self.facts_at + 8 + len(packed)] = packed


LAST, BEFORE = -1, -2
HUGE = (1 << 64) - 1
WRONG: dict[str, Callable[[Image], None]] = {
    "another release": lambda it: it.write(0, 7),
    "another window": lambda it: it.write(8, WINDOW + 1),
    "other messages": lambda it: it.write(16, TENSOR_BYTES * 2),
    "another length": lambda it: it.write(24, it.word(24) + 8),
    "more results than were taken": lambda it: it.write(64, it.past.progress + 1),
    "fewer results than were taken": lambda it: it.write(64, it.past.progress - 4),
    "results without number": lambda it: it.write(64, HUGE),
    "facts in a third place": lambda it: it.write(72, 3),
    "facts without end": lambda it: it.write(it.facts_at, HUGE),
    "an operation without a place": lambda it: it.write(it.record(it.past.progress + LAST, 0), WINDOW + 2),
    "an offset between messages": lambda it: it.write(it.record(it.past.progress + LAST, 1), 3),
    "an offset behind the end": lambda it: it.write(it.record(it.past.progress + LAST, 1), 1 << 40),
    "more bytes than a message": lambda it: it.write(it.record(it.past.progress + LAST, 2), 9),
    "fewer bytes than a message": lambda it: it.write(it.record(it.past.progress + LAST, 2), 4),
    "no bytes": lambda it: it.write(it.record(it.past.progress + LAST, 2), 0),
    "bytes behind the memory": lambda it: it.write(it.record(it.past.progress + LAST, 3), len(it.memory) - 4),
    "bytes nowhere": lambda it: it.write(it.record(it.past.progress + LAST, 3), HUGE),
    "another number": lambda it: it.write(it.record(it.past.progress + BEFORE, 4), 1),
    "a vote": lambda it: it.write(it.operation(it.past.progress + LAST, 0), VOTE),
    "an all-reduce ahead": lambda it: it.write(it.operation(it.past.progress + LAST, 0), 77),
    "another type": lambda it: it.write(it.operation(it.past.progress + LAST, 1), 99),
    "half an element": lambda it: it.write(it.operation(it.past.progress + LAST, 4), 38),
    "another operator": lambda it: it.write(it.operation(it.past.progress + LAST, 2), 99),
    "another path": lambda it: it.write(it.operation(it.past.progress + LAST, 3), 99),
    "a shorter tensor": lambda it: it.write(it.operation(it.past.progress + LAST, 4), 4),
    "a signature that fits in no header": lambda it: it.write(
        it.operation(it.past.progress + LAST, 5), 1 << 16
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_field_is_refused(wrong: str) -> None:
    image = Image()
    WRONG[wrong](image)
    with pytest.raises(JournalRefused):
        image.read()


JOINED = [encode_message(join(rank)) for rank in (1, 3)]
FACTS: dict[str, Any] = {
    "no map": [1],
    "no msgpack": b"\xc1",
    "nothing": b"",
    "no ranks": {"joins": []},
    "ranks that are none": {"joins": 5},
    "a rank that is none": {"joins": [b"x"]},
    "a rank of text": {"joins": ["x"]},
    "a rank that has left": {"joins": [encode_message(Leave(id=1))]},
    "two messages of one rank": {"joins": [JOINED[0] + JOINED[1]]},
    "half a message": {"joins": [JOINED[0][:-1]]},
    "a rank twice": {"joins": [JOINED[0], JOINED[0]]},
    "ranks in no order": {"joins": JOINED[::-1]},
    "ranks of two jobs": {"joins": [JOINED[0], encode_message(join(3, job="other"))]},
    "ranks of two sizes": {"joins": [JOINED[0], encode_message(join(3, size=5))]},
    "a rank too many": {"joins": [encode_message(join(4))]},
    "who has left is none": {"left": 3},
    "who has left is another": {"left": [[0, 0]]},
    "left after half": {"left": [[3, 0.5]]},
    "left after infinity": {"left": [[3, float("inf")]]},
    "left before the job": {"left": [[3, -1]]},
    "left after what is not done": {"left": [[3, 99]]},
    "left, by a list": {"left": [[[3], 0]]},
    "a boot that is none": {"boot_id": 5},
    "a long boot": {"boot_id": "b" * 257},
    "a failure that is none": {"failure": 1},
    "half a failure": {"failure": ["x"]},
    "a failure of numbers": {"failure": [1, 2]},
    "a failure with half a character": {"failure": ["x", "\ud800"]},
}


@pytest.mark.parametrize("wrong", FACTS)
def test_wrong_facts_are_refused(wrong: str) -> None:
    image, facts = Image(), FACTS[wrong]
    if isinstance(facts, dict):
        facts = msgpack.packb(image.facts | facts, unicode_errors="surrogatepass")
    image.facts = facts
    with pytest.raises(JournalRefused):
        image.read()


def test_each_fact_is_needed() -> None:
    for name in ("joins", "left", "boot_id"):
        image = Image()
        image.facts = {key: value for key, value in image.facts.items() if key != name}
        with pytest.raises(JournalRefused):
            image.read()


CONFIG = HostConfig(
    job="train",
    host="h",
    mtu=INA_HEADER_BYTES + TENSOR_BYTES,
    message_packets=1,
    window_messages=WINDOW,
    stall_ns=1,
    timeout_ns=0,
    recover_ns=1,
)


def believe(image: Image, past: Past) -> None:
    """What was read of a journal that somebody may have written is used, as by a host daemon."""
    assert 0 <= past.progress < 1 << 62
    assert len(past.kept) == (min(past.progress, WINDOW) if past.failure is None else 0)
    assert all(len(data) == its.nbytes <= TENSOR_BYTES for its, data in past.kept)
    if past.failure is None:
        job = HostJob.of_successor(CONFIG, past, Instant(0))
        assert job.progress == past.progress
        Journal.of_successor(image.arena, past)


def mutations(image: Image, draws: random.Random) -> Iterator[tuple[int, bytes]]:
    """Where, and what: words and bytes of the head, the tables and the facts."""
    facts = image.facts_at
    words = [*range(0, 96, 8), *range(layout._TABLES_AT, image.layout.facts_at, 8), facts]
    packed = range(facts + 8, facts + 8 + image.word(facts))
    near = [
        0,
        1,
        2,
        3,
        7,
        8,
        9,
        1 << 16,
        1 << 31,
        1 << 32,
        1 << 40,
        1 << 62,
        1 << 63,
        HUGE,
        len(image.memory),
    ]
    for _ in range(draws.randint(1, 3)):
        if draws.random() < 0.5:
            at = draws.choice(words)
            value = draws.choice(
                [*near, image.word(at) + 1, image.word(at) - 1, image.word(draws.choice(words))]
            )
            yield at, (value % (1 << 64)).to_bytes(8, "little")
        else:
            yield draws.choice(packed), draws.randbytes(draws.choice((1, 1, 1, 2, 5)))


def test_thousands_of_journals_that_somebody_has_changed() -> None:
    image, draws, refused = Image(), random.Random(0), 0
    for _ in range(6000):
        changed = list(mutations(image, draws))
        before = [(at, bytes(image.memory[at : at + len(data)])) for at, data in changed]
        for at, data in changed:
            image.memory[at : at + len(data)] = data
        try:
            believe(image, image.read())
        except JournalRefused:
            refused += 1
        for at, old in reversed(before):
            image.memory[at : at + len(old)] = old
    assert image.read() == image.past
    assert 2000 < refused < 6000


def test_a_past_of_another_host_is_misuse() -> None:
    past = Image().past
    with pytest.raises(LocalMisuse, match="recover_ms = 0"):
        HostJob.of_successor(replace(CONFIG, recover_ns=0), past, Instant(0))
