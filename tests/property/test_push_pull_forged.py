"""One forged word at any point: honest workers' updates are exact, or somebody is blamed; nothing is raised,
and nothing grows."""

from __future__ import annotations

from random import Random

import pytest

from inaproto.core.models.events import ShardSpec
from tests.property.forged_words import ForgedNet
from tests.property.push_pull_net import QUICK
from tests.property.test_push_pull import drawn_tree

STEPS = 12_000


def forged(seed: int) -> tuple[ForgedNet, str]:
    """And how it ended."""
    draw = Random(f"{seed}/forged")
    parents = drawn_tree(draw)
    staleness, updates = draw.choice([0, 0, 1, 2]), draw.randint(2, 6)
    elements = len(parents) * updates
    shard = ShardSpec(elements, "int64", staleness, ahead_max=staleness + draw.randint(1, 4))
    net = ForgedNet(parents, shard, random=draw, updates=updates, patience=QUICK)
    net.run(draw.randint(5, 400))
    word = net.forge()
    said = f"seed {seed}: {net.liar} says {word}"
    try:
        is_over = net.run(STEPS)
        net.check_bounds()
        assert is_over, f"{net.root and net.root.view()}"
        net.check_honest()
    except AssertionError as error:
        if not net.blames:
            raise AssertionError(f"{said}: {error}") from error
        return net, "blamed"
    return net, "exact"


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_one_forged_word_leaves_the_honest_exact_or_is_blamed(first: int) -> None:
    for seed in range(first, first + 20):
        forged(seed)
