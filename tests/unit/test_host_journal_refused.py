"""Journals that no daemon has left so are refused, whoever wrote them, and nothing else happens."""

from __future__ import annotations

import random
import re
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

    def __init__(self, taken: int = 7) -> None:
        processes, arena = Processes(), PrivateArena()
        daemon = Daemon(processes, arena, Stores(), WINDOW)
        for step in daemon.script():
            if step == "taken" and daemon.progress == taken:
                break
        end = max(area.at + len(area.view) for area in arena.areas)
        self.arena = PrivateArena()
        self.memory = self.arena.allocate(end).view
        for area in arena.areas:
            self.memory[area.at : area.at + len(area.view)] = area.view
        self.layout = layout._Layout(WINDOW, TENSOR_BYTES)
        past = self.read()
        assert past.kept
        self.past = past

    def read(self) -> Past:
        return read_journal(self.arena, window_messages=WINDOW, tensor_bytes=TENSOR_BYTES)

    def word(self, at: int) -> int:
        return int.from_bytes(self.memory[at : at + 8], "little")

    def write(self, at: int, word: int) -> None:
        self.memory[at : at + 8] = word.to_bytes(8, "little")

    def record(self, serial: int, field: int) -> int:
        return self.layout.records_at + serial % (WINDOW + 2) * 40 + 8 * field

    def last(self, field: int) -> int:
        return self.record(self.past.progress - 1, field)

    def operation(self, field: int) -> int:
        """Of the last result."""
        return self.layout.operations_at + self.word(self.last(0)) * 48 + 8 * field

    def has_counted_for_long(self, index: int) -> None:
        """As many results more as there are slots for, many times over; the last are of that all-reduce."""
        self.write(64, self.past.progress + LONG)
        for serial in range(self.past.progress - WINDOW, self.past.progress):
            self.write(self.record(serial, 4), serial + LONG + 1)
        self.write(self.operation(0), index)

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


HUGE = (1 << 64) - 1
LONG = 1 << 32
THERE = "result 6 is not there"
BEFORE_IT = "result 5 is not there"
NONE = "it is none: "
"""Why what it says cannot be read follows."""
WRONG: dict[str, tuple[str, Callable[[Image], None]]] = {
    "another release": ("it is none, or that of another release", lambda it: it.write(0, 7)),
    "another window": (
        "its daemon had a window of 3 messages with 8 bytes each, this one has 2 with 8: start it",
        lambda it: it.write(8, WINDOW + 1),
    ),
    "other messages": (
        "its daemon had a window of 2 messages with 16 bytes each, this one has 2 with 8: start it",
        lambda it: it.write(16, TENSOR_BYTES * 2),
    ),
    "another length": (
        "it has 2101272 bytes where 2101264 belong",
        lambda it: it.write(24, it.word(24) + 8),
    ),
    "more results than were taken": ("result 7 is not there", lambda it: it.write(64, it.past.progress + 1)),
    "fewer results than were taken": ("result 2 is not there", lambda it: it.write(64, it.past.progress - 4)),
    "results without number": (f"it counts {HUGE} results", lambda it: it.write(64, HUGE)),
    "as many results as no job has": (f"it counts {1 << 60} results", lambda it: it.write(64, 1 << 60)),
    "facts in a third place": ("the job had not begun", lambda it: it.write(72, 3)),
    "facts without end": (f"{HUGE} bytes of facts", lambda it: it.write(it.facts_at, HUGE)),
    "an operation without a place": ("operation 4 of its table", lambda it: it.write(it.last(0), WINDOW + 2)),
    "an offset between messages": (THERE, lambda it: it.write(it.last(1), 3)),
    "an offset behind the end": (THERE, lambda it: it.write(it.last(1), 1 << 40)),
    "more bytes than a message": (THERE, lambda it: it.write(it.last(2), 9)),
    "fewer bytes than a message": (THERE, lambda it: it.write(it.last(2), 4)),
    "no bytes": (THERE, lambda it: it.write(it.last(2), 0)),
    "bytes behind the memory": (
        "bytes 2101836 to 2101844 are in no area",
        lambda it: it.write(it.last(3), len(it.memory) - 4),
    ),
    "bytes nowhere": (f"bytes {HUGE} to {HUGE + 8} are in no area", lambda it: it.write(it.last(3), HUGE)),
    "another number": (BEFORE_IT, lambda it: it.write(it.record(it.past.progress - 2, 4), 1)),
    "another part of the tensor": (
        "result 6 does not follow the one before it",
        lambda it: it.write(it.last(1), 16),
    ),
    "a vote": (f"result {5 + LONG} is not there", lambda it: it.has_counted_for_long(VOTE)),
    "an all-reduce ahead": (BEFORE_IT, lambda it: it.write(it.operation(0), 77)),
    "another type": (f"{NONE}99 is not", lambda it: it.write(it.operation(1), 99)),
    "half an element": ("all-reduce 2 has 38 bytes of I32", lambda it: it.write(it.operation(4), 38)),
    "another operator": (f"{NONE}99 is not", lambda it: it.write(it.operation(2), 99)),
    "another path": (NONE, lambda it: it.write(it.operation(3), 99)),
    "a shorter tensor": (BEFORE_IT, lambda it: it.write(it.operation(4), 4)),
    "a signature that fits in no header": (BEFORE_IT, lambda it: it.write(it.operation(5), 1 << 16)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_field_is_refused(wrong: str) -> None:
    image, (words, change) = Image(), WRONG[wrong]
    change(image)
    with pytest.raises(JournalRefused, match=f"^{re.escape(words)}"):
        image.read()


JOINED = [encode_message(join(rank)) for rank in (1, 3)]
ORDER = "its ranks are in no order, or not of their job"
JOBS = "its ranks are of no job, or of several"
LEFT = "nobody leaves like that"
TEXT = "it says what is no text"
RUN = "its first ring is none"
FACTS: dict[str, tuple[str, Any]] = {
    "no map": ("its facts are none", [1]),
    "no msgpack": (NONE, b"\xc1"),
    "nothing": (NONE, b""),
    "no ranks": (JOBS, {"joins": []}),
    "ranks that are none": (NONE, {"joins": 5}),
    "a rank that is none": (NONE, {"joins": [b"x"]}),
    "a rank of text": ("a rank has joined by no message", {"joins": ["x"]}),
    "a rank that has left": ("a rank has joined by 'leave'", {"joins": [encode_message(Leave(id=1))]}),
    "two messages of one rank": (NONE, {"joins": [JOINED[0] + JOINED[1]]}),
    "half a message": (NONE, {"joins": [JOINED[0][:-1]]}),
    "a rank twice": (ORDER, {"joins": [JOINED[0], JOINED[0]]}),
    "ranks in no order": (ORDER, {"joins": JOINED[::-1]}),
    "ranks of two jobs": (JOBS, {"joins": [JOINED[0], encode_message(join(3, job="other"))]}),
    "ranks of two sizes": (JOBS, {"joins": [JOINED[0], encode_message(join(3, size=5))]}),
    "a rank too many": (ORDER, {"joins": [encode_message(join(4))]}),
    "more ranks than a host has": (
        "it has 1025 ranks",
        {"joins": [encode_message(join(rank, size=2000)) for rank in range(1025)]},
    ),
    "who has left is none": (NONE, {"left": 3}),
    "who has left is another": (ORDER, {"left": [[0, 0]]}),
    "left after half": (LEFT, {"left": [[3, 0.5]]}),
    "left after infinity": (LEFT, {"left": [[3, float("inf")]]}),
    "left before the job": (LEFT, {"left": [[3, -1]]}),
    "left with a vote": (LEFT, {"left": [[3, VOTE]]}),
    "left after what is not done": (
        "a rank has left that had the results of more than 3 all-reduces",
        {"left": [[3, 4]]},
    ),
    "left, by a list": (NONE, {"left": [[[3], 0]]}),
    "a boot that is none": (TEXT, {"boot_id": 5}),
    "a long boot": (TEXT, {"boot_id": "b" * 257}),
    "a ring of text": (RUN, {"run": ["1", 2]}),
    "a ring before all": (RUN, {"run": [-1, 2]}),
    "a ring of more hosts than there are numbers": (RUN, {"run": [1, 1 << 32]}),
    "a failure that is none": (NONE, {"failure": 1}),
    "half a failure": (NONE, {"failure": ["x"]}),
    "a failure of numbers": (TEXT, {"failure": [1, 2]}),
    "a failure with half a character": (NONE, {"failure": ["x", "\ud800"]}),
    "a failure with a long code": (TEXT, {"failure": ["x" * 129, "y"]}),
    "a failure with a long code for its words": (TEXT, {"failure": ["x" * 129] * 2}),
    "a failure with too many words": (TEXT, {"failure": ["x", "y" * 8193]}),
}


@pytest.mark.parametrize("wrong", FACTS)
def test_wrong_facts_are_refused(wrong: str) -> None:
    image, (words, facts) = Image(), FACTS[wrong]
    if isinstance(facts, dict):
        facts = msgpack.packb(image.facts | facts, unicode_errors="surrogatepass")
    image.facts = facts
    with pytest.raises(JournalRefused, match=f"^{re.escape(words)}"):
        image.read()


@pytest.mark.parametrize(
    "facts",
    [
        {"left": [[3, 3]]},
        {"boot_id": "b" * 256, "run": [(1 << 32) - 1, 0]},
        {"failure": ["x" * 128, "y" * 8192], "left": [[3, VOTE - 1]]},
        {"joins": [encode_message(join(rank, size=1024)) for rank in range(1024)]},
    ],
    ids=["left", "ring", "failure", "ranks"],
)
def test_the_widest_facts_are_believed(facts: dict[str, Any]) -> None:
    image = Image()
    image.facts = image.facts | facts
    image.read()


def test_the_widest_numbers_are_believed() -> None:
    image = Image()
    image.has_counted_for_long(VOTE - 1)
    image.write(image.operation(5), 0xFFFF)
    past = image.read()
    assert (past.progress, past.next_index) == (7 + LONG, VOTE)
    assert past.kept[-1][0].operation.signature == 0xFFFF
    more = {"more": b""}
    room = layout.FACTS_BYTES_MAX - len(msgpack.packb(image.facts | more)) - 3  # its length has four bytes
    image.facts = image.facts | {"more": bytes(room)}
    assert image.word(image.facts_at) == layout.FACTS_BYTES_MAX
    assert image.read() == past


@pytest.mark.parametrize(
    ("taken", "words", "changes"),
    [
        (4, "result 2 is not there", {(2, 1): 8, (3, 1): 16}),
        (8, "result 7 does not follow the one before it", {(7, 0): 4}),
        (9, "result 7 is not there", {(7, 1): 8, (7, 2): 0}),
    ],
    ids=["sooner than they can be", "of another all-reduce", "a second end"],
)
def test_results_that_no_job_has_one_after_the_other_are_refused(
    taken: int, words: str, changes: dict[tuple[int, int], int]
) -> None:
    """Fields 1 and 2 are offset and bytes of a result, 0 is the index of its operation."""
    image = Image(taken)
    for (serial, field), value in changes.items():
        image.write(image.record(serial, field) if field else image.operation(0), value)
    with pytest.raises(JournalRefused, match=f"^{words}"):
        image.read()


def test_each_fact_is_needed() -> None:
    for name in ("joins", "left", "boot_id", "run"):
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
