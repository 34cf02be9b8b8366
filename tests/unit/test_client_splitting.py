"""Groups of a job's ranks: who is in which, under which name and key; by brute force over small jobs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from inaproto.client.channel import JobRank
from inaproto.client.splitting import NAME_BYTES_MAX, group_of, row_of, row_of_group
from inaproto.client.wishes import JobWishes
from inaproto.errors import LocalMisuse

WISHES = JobWishes("chain", elastic=True)


def groups(colors: Any, keys: Any, job: str = "train", secret: str = "secret", number: int = 0) -> list[Any]:
    size = len(colors)
    table = np.stack([row_of(color, key) for color, key in zip(colors, keys, strict=True)])
    return [group_of(table, JobRank(job, rank, size, secret, WISHES), number) for rank in range(size)]


def test_every_split_of_small_jobs() -> None:
    for size in (1, 2, 3):
        for colors in itertools.product((None, 0, -7), repeat=size):
            for keys in itertools.product((0, 1), repeat=size):
                found = groups(colors, keys)
                for color in {*colors} - {None}:
                    members = [rank for rank in range(size) if colors[rank] == color]
                    expected = sorted(members, key=lambda rank: (keys[rank], rank))
                    assert [found[rank].rank for rank in expected] == list(range(len(members)))
                    assert {found[rank].size for rank in members} == {len(members)}
                    assert len({(found[rank].job, found[rank].key) for rank in members}) == 1
                    assert {found[rank].wishes for rank in members} == {WISHES}
                assert [who is None for who in found] == [color is None for color in colors]


def test_names_and_keys_are_of_one_group_alone() -> None:
    found = [
        *groups([0, 1], [0, 0]),
        *groups([0, 1], [0, 0]),  # another number is drawn
        *groups([0, 1], [0, 0], number=1),
        *groups([0, 1], [0, 0], secret="other"),
        *groups([0, 1], [0, 0], job="x" * 128),
        *groups([0, 1], [0, 0], job="größe" * 18),
    ]
    assert len({who.job for who in found}) == len({who.key for who in found}) == len(found)
    assert all("secret" not in who.key and len(who.job.encode()) <= NAME_BYTES_MAX for who in found)


def test_a_group_has_its_members_in_the_order_in_which_they_were_named() -> None:
    who = [JobRank("train", rank, 4, "k") for rank in range(4)]
    table = np.stack([row_of_group([3, 1], each) for each in who])
    found = [group_of(table, each, 0) for each in who]
    assert [None if each is None else (each.rank, each.size) for each in found] == [
        None,
        (1, 2),
        None,
        (0, 2),
    ]
    table[2] = row_of_group([3, 2], who[2])
    for each in who:
        with pytest.raises(LocalMisuse, match="rank 2 of job 'train' named other ranks than rank 0"):
            group_of(table, each, 0)


@pytest.mark.parametrize("color", ["a", 1.0, True, 1 << 63])
def test_colors_and_keys_are_integers(color: Any) -> None:
    with pytest.raises(LocalMisuse, match="must be an integer; None is for a rank"):
        row_of(color, 0)
    with pytest.raises(LocalMisuse, match="key is"):
        row_of(0, color)


@pytest.mark.parametrize("ranks", [[], [0, 0], [2], [-1], "01", None, [0.0]])
def test_groups_are_of_different_ranks_of_the_job(ranks: Any) -> None:
    with pytest.raises(LocalMisuse, match="different ranks of the job, 0 to 1"):
        row_of_group(ranks, JobRank("train", 0, 2))
