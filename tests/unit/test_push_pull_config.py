"""Shards, patience, nodes and roots that cannot be are refused, by a sentence that says why."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inaproto.core.models.events import DTYPES, NodeConfig, Patience, RootConfig, ShardSpec
from inaproto.core.models.tree.epochs import Stand
from inaproto.core.models.tree.shape import Shape
from inaproto.errors import LocalMisuse
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId

ROOT, ME, LEFT, RIGHT, HIGH = (NodeId(number) for number in (9, 1, 2, 3, 4))
WORKERS = (WorkerId(0), WorkerId(1))
SHARD = ShardSpec(1, "int32", staleness=1, fraction_bits=0, ahead_max=2)
SHAPE = Shape(WorkerId(0))
OTHER = Stand((LEFT, ROOT), (RIGHT,), SHAPE)
NODE = NodeConfig(SHARD, ME, (LEFT, HIGH, ROOT), (RIGHT,), shape=SHAPE, children_max=1, others=(OTHER,))
TOP = RootConfig(
    SHARD,
    ROOT,
    WORKERS,
    (ME, LEFT),
    (ME, LEFT),
    teardown_failures=1,
    removal_ns=1,
    shape=SHAPE,
    children_max=2,
    others=(Stand((), (LEFT, ME), SHAPE),),
)
LEAST = Patience(1, 0, 0, 0)


def refused(its: Any, why: str, **changes: Any) -> None:
    with pytest.raises(LocalMisuse, match=f"^{re.escape(why)}"):
        replace(its, **changes)


def test_the_least_that_can_be_is_taken() -> None:
    for its in (SHARD, NODE, TOP, LEAST):
        assert replace(its) == its
    assert replace(SHARD, fraction_bits=None, dtype="float32", staleness=0, ahead_max=1).dtype == "float32"
    assert replace(LEAST, heartbeat_ns=None).heartbeat_ns is None
    assert replace(TOP, removal_ns=None).removal_ns is None
    for dtype in DTYPES:
        assert ShardSpec(1, dtype).numpy_dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"elements": 0}, f"a shard has elements, of one of {DTYPES}, not 0 of int32"),
        ({"dtype": "int8"}, f"a shard has elements, of one of {DTYPES}, not 1 of int8"),
        ({"staleness": -1}, "staleness -1 is not between 0 and ahead_max 2 - 1"),
        ({"staleness": 2}, "staleness 2 is not between 0 and ahead_max 2 - 1"),
        ({"fraction_bits": -1}, "fixed point has fraction bits >= 0 and travels as integers"),
        ({"dtype": "float32"}, "fixed point has fraction bits >= 0 and travels as integers"),
    ],
)
def test_a_shard_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    refused(SHARD, why, **changes)


@pytest.mark.parametrize(
    ("name", "value"), [("heartbeat_ns", 0), ("dead_ns", -1), ("return_ns", -1), ("start_ns", -1)]
)
def test_a_time_of_patience_that_is_too_small(name: str, value: int) -> None:
    refused(LEAST, "patience: a time that is too small: Patience(", **{name: value})


NAMED_TWICE = "node 1: a node is its own neighbour, or is named twice: ({})"
SEVERAL = "node 1: trees of several roots, or some of them without an order"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ancestors": ()}, "node 1 has no ancestors: the last one is the root"),
        ({"ancestors": (ME, ROOT)}, NAMED_TWICE.format("1, 1, 9, 3")),
        ({"ancestors": (RIGHT, ROOT)}, NAMED_TWICE.format("1, 3, 9, 3")),
        ({"others": (replace(OTHER, children=(LEFT,)),)}, NAMED_TWICE.format("1, 2, 9, 2")),
        ({"others": (replace(OTHER, ancestors=(LEFT,)),)}, SEVERAL),
        ({"others": (OTHER, replace(OTHER, shape=None))}, SEVERAL),
        ({"shape": None}, SEVERAL),
        ({"children_max": 0}, "node 1 has more children than children_max 0"),
    ],
)
def test_a_node_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    refused(NODE, why, **changes)


NOT_BELOW = "root 9: no workers, or children that are not nodes below it"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workers": (WORKERS[0],) * 2}, "root 9: a worker is named twice: (0, 0)"),
        ({"children": (ME, ME)}, "root 9: a child is named twice: (1, 1)"),
        ({"nodes": (ME, LEFT, ME)}, "root 9: a node is named twice: (1, 2, 1)"),
        ({"workers": ()}, NOT_BELOW),
        ({"children": (ME, RIGHT)}, NOT_BELOW),
        ({"nodes": (ME, ROOT)}, NOT_BELOW),
        (
            {"others": (Stand((), (RIGHT,), SHAPE),)},
            "root 9: children in another tree that are not nodes below it",
        ),
        ({"teardown_failures": 0}, "root 9: a number that is too small: RootConfig("),
        ({"children_max": 1}, "root 9: a number that is too small: RootConfig("),
        ({"removal_ns": 0}, "root 9: a number that is too small: RootConfig("),
    ],
)
def test_a_root_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    refused(TOP, why, **changes)


def test_the_tree_that_stands_is_the_first_to_choose_from() -> None:
    assert NODE.stands == (Stand((LEFT, HIGH, ROOT), (RIGHT,), SHAPE), OTHER)
    assert TOP.stands == (Stand((), (ME, LEFT), SHAPE), *TOP.others)
