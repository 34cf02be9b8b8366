"""A store against the models file: what is mapped, what is refused, and in which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.daemon.models.shard_records import change_of, state_of
from inaproto.daemon.models.store.durable_log import Found
from inaproto.daemon.models.store.shard_store import Stored, stored
from inaproto.daemon.settings.models_file import Shard, models_of
from inaproto.errors import ConfigError
from inaproto.wire.control_messages import Message, encode_with_arrays
from inaproto.wire.messages.array_frames import Frame, FrameDecoder
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from tests.clusters.models import models_document

DIRECTORY = Path("/store/m-0")


def shard(hosts: int = 3, servers: int = 2, number: int = 0, **fields: Any) -> Shard:
    fields = {"dtype": "int64", "elements": 8, **fields}
    return models_of(models_document(hosts, servers, **fields), Path("/run")).models[0].shards[number]


def clocks(*values: int) -> Clocks:
    return Clocks((WorkerId(number), value) for number, value in enumerate(values))


def sent(message: Message) -> Frame:
    (frame,) = FrameDecoder(1 << 20).feed(b"".join(encode_with_arrays(message)))
    return frame


def found(by: Shard, at: Clocks, *changes: Clocks) -> Found:
    snapshot = RootSnapshot(np.arange(by.elements), at)
    records = [RootRecord(change, np.ones(by.elements, np.int64)) for change in changes]
    return Found(sent(state_of(snapshot, by)), [sent(change_of(record)) for record in records], 0)


def test_a_store_of_the_same_file() -> None:
    there = found(shard(), clocks(4, 5, 6), Clocks({WorkerId(1): 7}))
    got = stored(there, shard(), DIRECTORY)
    assert got == Stored(
        RootSnapshot(np.arange(4), clocks(4, 5, 6)),
        [RootRecord(Clocks({WorkerId(1): 7}), np.ones(4, np.int64))],
        "",
    )
    assert stored(Found(None, [], 0), shard(), DIRECTORY) == Stored(None, [], "")


def test_each_clock_goes_to_its_worker_whatever_its_number_is() -> None:
    there = found(shard(), clocks(4, 5, 6), Clocks({WorkerId(1): 7}))
    got = stored(there, shard(workers=["h2", "h0", "h1"]), DIRECTORY)
    assert got.snapshot is not None
    assert (got.snapshot.clocks, got.changes[0].clocks) == (clocks(6, 4, 5), Clocks({WorkerId(2): 7}))
    assert got.news == "workers have other numbers than before, and keep their clocks"


def test_new_workers_begin_at_0_wherever_they_stand() -> None:
    there = found(shard(workers=["h1", "h2"]), clocks(4, 5), Clocks({WorkerId(0): 7}))
    got = stored(there, shard(4), DIRECTORY)
    assert got.snapshot is not None
    assert (got.snapshot.clocks, got.changes[0].clocks) == (clocks(0, 4, 5, 0), Clocks({WorkerId(1): 7}))
    assert got.news.endswith("keep their clocks; new, at clock 0: h0, h3")
    got = stored(there, shard(workers=["h1", "h2", "h0"]), DIRECTORY)
    assert got.news == "new, at clock 0: h0"


def test_who_has_left_need_not_be_named_any_more() -> None:
    there = found(shard(), clocks(4, 5, 6), Clocks({WorkerId(0): FOREVER}))
    got = stored(there, shard(workers=["h1", "h2"]), DIRECTORY)
    assert got.snapshot is not None
    assert (got.snapshot.clocks, got.changes[0].clocks) == (clocks(5, 6), Clocks({}))
    assert got.news.endswith("had left, and are not named any more: h0")


def test_a_worker_that_is_missing_is_refused() -> None:
    why = (
        r"store: /store/m-0 has updates of workers that the models file does not name: h0 \(4 updates\)\. Put"
    )
    with pytest.raises(ConfigError, match=why):
        stored(found(shard(), clocks(4, 5, 6)), shard(workers=["h1", "h2"]), DIRECTORY)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (shard(elements=9, servers=2, number=0), r"elements 8 \(the models file: 9\): put"),
        (shard(dtype="float64"), r"dtype int64 \(the models file: float64\): put"),
        (shard(fraction_bits=3), r"fraction_bits none \(the models file: 3\): put"),
        (shard(servers=1), r"part 0 of 2 servers \(the models file: part 0 of 1\), elements 0 to 4 of it \("),
        (
            shard(servers=2, number=1),
            r"part 0 of 2 servers \(the models file: part 1 of 2\), elements 0 to 4",
        ),
    ],
    ids=["elements", "dtype", "fraction_bits", "servers", "part"],
)
def test_other_weights_are_refused(now: Shard, why: str) -> None:
    with pytest.raises(ConfigError, match="store: /store/m-0 has " + why):
        stored(found(shard(), clocks(4, 5, 6)), now, DIRECTORY)


def test_a_store_that_has_no_names_yet_is_that_of_as_many_workers() -> None:
    by = shard()
    told = state_of(RootSnapshot(np.arange(4), clocks(4, 5, 6)), by)
    there = Found(sent(replace(told, workers=(), model_elements=0, shards=0)), [], 0)
    got = stored(there, by, DIRECTORY)
    assert got.snapshot is not None
    assert (got.snapshot.clocks, bool(got.news)) == (clocks(4, 5, 6), True)
    with pytest.raises(
        ConfigError, match="has 3 workers and not their names, as an earlier version wrote it"
    ):
        stored(there, shard(4), DIRECTORY)


def test_what_is_no_state_is_refused() -> None:
    change = sent(change_of(RootRecord(clocks(1, 1, 1), None)))
    with pytest.raises(ConfigError, match="'shard_change', where a shard's state was to be"):
        stored(Found(change, [], 0), shard(), DIRECTORY)
