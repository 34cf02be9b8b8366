"""Overlay worlds with one thing less, and how large they are; what tries them is
:mod:`inaproto.sim.campaign.shrink`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inaproto.sim.kernel.config import one_less
from inaproto.sim.kernel.world import RunResult
from inaproto.sim.models.config import Below, OverlayConfig, ShardSetup


def overlay_rows(result: RunResult[OverlayConfig]) -> dict[str, str]:
    """A run in a few rows, for people."""
    config = result.config
    return {
        "hosts": f"{len(config.hosts)}, {len(config.workers)} of them with a worker",
        "shards": "; ".join(
            f"{setup.dtype}{f' / 2**{setup.fraction_bits}' if setup.fraction_bits >= 0 else ''}, "
            f"s = {setup.staleness}, tree {config.tree(number).height()} high"
            for number, setup in enumerate(config.shards)
        ),
        "updates": ", ".join(str(worker.clocks) for worker in config.workers),
    }


def size_of(config: OverlayConfig) -> str:
    return f"{len(config.hosts)} hosts, {len(config.shards)} shards, {config.updates} updates"


def smaller_overlay(config: OverlayConfig) -> Iterator[OverlayConfig]:
    """The greatest steps first."""
    if any(setup.others for setup in config.shards):
        shards = tuple(replace(setup, others=()) for setup in config.shards)
        yield replace(config, shards=shards, reshapings=())
    if len(config.shards) > 1:
        last = len(config.shards) - 1
        fewer = tuple(one for one in config.reshapings if one.shard < last)
        yield replace(config, shards=config.shards[:-1], reshapings=fewer)
    for host in reversed(config.hosts):
        without = _without(config, host)
        if without is not None:
            yield without
    yield from one_less(config, "faults")
    yield from one_less(config, "reshapings")
    most = max(worker.clocks for worker in config.workers)
    for clocks in (most // 2, most - 1):
        if 0 < clocks < most:
            workers = tuple(replace(one, clocks=min(one.clocks, clocks)) for one in config.workers)
            yield replace(config, workers=workers)
    for number, worker in enumerate(config.workers):
        less = [replace(worker, clocks=worker.clocks - 1)] if worker.clocks > 1 else []
        if (worker.pushes, worker.empty_every) != (1, 0):
            less.append(replace(worker, pushes=1, empty_every=0))
        for one in less:
            yield replace(config, workers=(*config.workers[:number], one, *config.workers[number + 1 :]))


def _without(config: OverlayConfig, host: int) -> OverlayConfig | None:
    """Without a host that has no children; None: it has, or it is needed."""
    workers = tuple(worker for worker in config.workers if worker.host != host)
    trees = [tree for setup in config.shards for tree in (setup.below, *setup.others)]
    is_above = any(node == host for tree in trees for node, _ in tree)
    if not workers or is_above or len(config.hosts) == 1:
        return None
    return replace(
        config,
        hosts=tuple(one for one in config.hosts if one != host),
        workers=workers,
        shards=tuple(_pruned(setup, host) for setup in config.shards),
    )


def _pruned(setup: ShardSetup, host: int) -> ShardSetup:
    first, *others = (_less(tree, host) for tree in (setup.below, *setup.others))
    return replace(setup, below=first, others=tuple(others))


def _less(tree: Below, host: int) -> Below:
    below = [(node, tuple(one for one in children if one != host)) for node, children in tree]
    return tuple((node, children) for node, children in below if children)
