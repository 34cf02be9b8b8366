"""Buckets of DDP that are smaller than torch's where inaproto sums them, so that less is left when the
backward pass ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.conftest import Ranks
from tests.torch.test_backend import TAKEN

MIB = 1 << 20
BY_US, BY_TORCH = (2.0, 12), (25.0, 2)
"""For 24 layers of 1 MiB: MiB of a bucket, and how many there are. Torch's first bucket has 1 MiB."""


def test_a_model_has_sixteen_unless_they_are_too_small_or_larger_than_torch_s(one_host: Ranks) -> None:
    sizes = {MIB: None, 2 * MIB: None, 2 * MIB + 1: 2, 32 * MIB: 2, 33 * MIB: 3, 98 * 10**6: 6}
    sizes |= {384 * MIB: 24, 385 * MIB: None, 528 * 10**6: None}
    (found,) = one_host.results("bucket_sizes", 1, nbytes=list(sizes))
    assert found == list(sizes.values())


@pytest.mark.parametrize(
    ("options", "wishes", "expected"),
    [
        ({"backend": "inaproto"}, {}, BY_US),
        ({"backend": "gloo"}, TAKEN, BY_US),
        ({"backend": "gloo", "mesh": True}, TAKEN, BY_US),
        ({"backend": "gloo", "bucket_cap_mb": None}, TAKEN, BY_US),
        ({"backend": "gloo", "bucket_cap_mb": 8}, TAKEN, (8.0, 3)),
        ({"backend": "gloo", "bucket_cap_mb": 25}, TAKEN, (25.0, 1)),
        ({"backend": "gloo"}, TAKEN | {"INAPROTO_TORCH_BUCKET_MB": "4"}, (4.0, 6)),
        ({"backend": "gloo", "mib": 2}, TAKEN, (25.0, 2)),
    ],
    ids=["by name", "taken", "mesh", "None is not told", "told", "torch's is told", "wished", "small"],
)
def test_buckets_go_by_the_model_unless_somebody_tells_their_size(
    one_host: Ranks, options: dict[str, Any], wishes: dict[str, str], expected: tuple[float, int]
) -> None:
    for found in one_host.results("buckets", 2, wishes, **options):
        assert (found["mib"], found["sums"]) == expected


def test_who_is_not_served_has_torch_s(one_host: Ranks) -> None:
    for found in one_host.results("buckets", 2, {"INAPROTO_TORCH_BUCKET_MB": "4"}, backend="gloo"):
        assert found["mib"] == 25.0


def test_buckets_are_told_once_and_change_no_byte(one_host: Ranks) -> None:
    runs = [
        one_host.run("buckets", 2, TAKEN | wishes, backend="gloo")
        for wishes in ({}, {"INAPROTO_TORCH_BUCKET_MB": "25"})
    ]
    assert len({rank.result["weights"] for ranks in runs for rank in ranks}) == 1
    told = [rank.output.count("buckets of 2 MiB") for ranks in runs for rank in ranks]
    assert told == [1, 0, 0, 0]


def test_a_call_that_torch_refuses_is_refused_by_torch(one_host: Ranks) -> None:
    for found in one_host.results("refused_calls", 2, TAKEN):
        assert found == ["ValueError", "TypeError", "RuntimeError", "RuntimeError"]
