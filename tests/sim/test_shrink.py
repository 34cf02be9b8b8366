from __future__ import annotations

import pytest

from inaproto.errors import ConfigError
from inaproto.sim.campaign.shrink import ddmin, shrink
from inaproto.sim.frames.draw.swarm import Swarm, WorldConfig, draw_world
from tests.sim.third_nak import PARTS, PRODUCT

SMALL = Swarm(ranks_max=4, jobs_max=2, packets_max=100)


@pytest.fixture(scope="module")
def world() -> WorldConfig:
    """The first one of more than two ranks that fails, of those whose NICs go back: each NAK takes a loss."""
    drawn = (draw_world(seed, SMALL) for seed in range(44, 200))
    return next(config for config in drawn if len(config.links) > 2 and PARTS.run(config).violation)


@pytest.mark.parametrize("needed", [{3}, {0, 19}, {4, 5, 11}, set(range(20)), set()])
def test_ddmin_keeps_what_is_needed_and_nothing_else(needed: set[int]) -> None:
    assert ddmin(range(20), lambda items: needed <= set(items)) == tuple(sorted(needed))


def test_ddmin_result_cannot_lose_any_item() -> None:
    def fails(items: tuple[int, ...]) -> bool:
        return sum(items) % 7 == 3 or len(items) > 8

    small = ddmin(range(16), fails)
    assert fails(small)
    assert not any(fails(small[:index] + small[index + 1 :]) for index in range(len(small)))


def test_a_failing_world_becomes_small_and_fails_alike(world: WorldConfig) -> None:
    small = shrink(world, PARTS.run)
    assert small.complete
    [one] = small.config.jobs
    assert (len(small.config.links), len(one.hosts), len(one.elements)) == (2, 2, 1)
    assert not small.config.faults
    assert sum(map(len, small.fates.values())) == 3  # one loss for each NAK
    assert _ranks(world) > 2
    assert all(link.weather.clear for link in small.config.links)
    again = PARTS.run(small.config, small.fates)
    assert again.violation is not None
    assert again.violation == small.after.violation
    assert again.violation.rule == "no third NAK"


def test_shrinking_keeps_to_its_runs_and_is_the_same_each_time(world: WorldConfig) -> None:
    seen: list[int] = []
    first = shrink(world, PARTS.run, runs_max=12, progress=lambda runs, best: seen.append(runs))
    assert first == shrink(world, PARTS.run, runs_max=12)
    assert first.runs == 12
    assert not first.complete
    assert seen == sorted(seen)
    assert _ranks(first.config) < _ranks(world)
    assert "runs used up" in str(first)


def _ranks(config: WorldConfig) -> int:
    return sum(len(job.hosts) for job in config.jobs)


def test_a_world_that_keeps_the_rules_cannot_shrink() -> None:
    with pytest.raises(ConfigError, match="breaks no rule"):
        shrink(draw_world(3), PRODUCT.run)
