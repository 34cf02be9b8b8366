"""Wishes for trees, from the controller to the root of a fabric: all of them come through, or none count."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inaproto.daemon.switch.tree_records import TOLD_SWITCHES_MAX, wish_messages
from inaproto.daemon.switch.wished_trees import WishedTrees
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import decode_message, encode_message
from inaproto.wire.messages.controller import AgentWelcome
from inaproto.wire.messages.trees import FabricTree, TreeWished, TreeWishes


def tree(switches: int, number: int = 0, *, nbytes: int = 12) -> FabricTree:
    def name(place: int) -> str:
        return f"{number}-{place}-".ljust(nbytes, "s")

    names = sorted(name(one) for one in range(switches))
    return FabricTree("root".ljust(nbytes, "r"), tuple((one, "root") for one in names), tuple(names))


def wishes(jobs: int, switches: int) -> tuple[TreeWished, ...]:
    return tuple(
        TreeWished(
            f"job{number:03}", number + 1, tree(switches, number) if number % 8 else None, number % 3 == 1
        )
        for number in range(jobs)
    )


def carried(message: TreeWishes) -> TreeWishes:
    (control,) = ControlDecoder().feed(encode_message(message))
    found = decode_message(control)
    assert isinstance(found, TreeWishes)
    return found


class Root:
    def __init__(self) -> None:
        self.wished: list[tuple[TreeWished, ...]] = []
        self.trees = WishedTrees(self.wished.append, list)

    def hears(self, *messages: TreeWishes) -> None:
        for message in messages:
            self.trees.heard(message)

    @property
    def taken(self) -> tuple[Any, Any]:
        status = self.trees.status()
        return status["term"], status["revision"]


@pytest.mark.parametrize(("jobs", "switches"), [(0, 0), (3, 2), (512, 64)])
def test_wishes_come_through_however_many_there_are(jobs: int, switches: int) -> None:
    told, root = wishes(jobs, switches), Root()
    messages = [carried(one) for one in wish_messages(2, 5, told)]
    assert len(messages) == messages[0].parts
    assert (len(messages) > 1) == (jobs == 512)
    random.Random(0).shuffle(messages)
    root.hears(*messages[:-1])
    assert root.wished == []
    assert root.taken == (0, 0)
    root.hears(messages[-1])
    assert root.wished == [told]
    assert root.taken == (2, 5)
    root.hears(*messages)
    assert root.wished == [told, told], "it may be said again"


def test_parts_of_two_revisions_are_never_put_together() -> None:
    """The rest of an older one comes late, or never: a job in neither would lose its tree by that."""
    old, new = wish_messages(1, 1, wishes(512, 64)), wish_messages(1, 2, wishes(500, 64))
    assert len(old) == len(new)
    root = Root()
    root.hears(*old[1:], *new[:1], *old[:1], *new[2:], *old)
    assert root.wished == []
    root.hears(new[1])
    assert root.wished == [wishes(500, 64)]
    root.hears(*old)
    assert root.taken == (1, 2)


def test_a_part_that_is_none_changes_nothing() -> None:
    root = Root()
    root.hears(TreeWishes(term=1, revision=1, trees=(), part=3, parts=2))
    assert root.wished == []
    root.hears(TreeWishes(term=1, revision=1, trees=()))
    assert root.wished == [()]


def test_the_largest_tree_fits_a_message() -> None:
    largest = TreeWished("j" * 128, 0xFFFF_FFFF, tree(TOLD_SWITCHES_MAX, nbytes=128))
    for message in wish_messages((1 << 64) - 1, (1 << 64) - 1, [largest] * 3):
        assert len(carried(message).trees) == 1


def test_a_part_that_was_heard_in_an_earlier_session_counts_no_more() -> None:
    """A store that has begun anew has a revision of the same number."""
    before, now = wish_messages(1, 2, wishes(512, 64)), wish_messages(1, 2, wishes(500, 64))
    root, welcome = Root(), AgentWelcome(term=1, report_ms=1000, trees=True)
    for messages in (before[1:], now):
        root.trees.connected(welcome, lambda message: None)
        root.hears(*messages)
        root.trees.disconnected()
    assert root.wished == [wishes(500, 64)]
