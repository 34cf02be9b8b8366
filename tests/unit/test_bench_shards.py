"""``inaproto bench accelerator --shards``: what it measures and refuses; how fast that is, no test asks."""

from __future__ import annotations

import os

import click
import pytest

from inaproto_hil.bench.accelerator import Config
from inaproto_hil.bench.shards import cpus_for, measure_shards


def test_shards_are_compared_with_one_of_them_and_every_sum_is_right() -> None:
    config = Config(workers=2, rings=2, payload=64, packets=8, window=2, sets=3, rounds=3, warmup=1, seed=1)
    shards = min(2, len(os.sched_getaffinity(0)))
    report = measure_shards(config, shards)
    assert report["wrong"] == 0
    assert report["config"]["shards"] == shards
    assert len(set(report["config"]["cpus"])) == shards
    assert len(report["samples_of_one_us"]) == len(report["samples_of_all_us"]) == 3
    low, high = report["ratio_to_one_spread"]
    assert 0 < low <= report["ratio_to_one"] <= high


def test_each_shard_needs_a_cpu_of_its_own() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert len(set(cpus_for(cpus))) == cpus
    with pytest.raises(click.BadParameter, match=f"this process may use {cpus}"):
        cpus_for(cpus + 1)
