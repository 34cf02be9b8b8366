from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inaproto.errors import ConfigError
from inaproto.sim.campaign.log import Log, read_log
from inaproto.sim.campaign.replay import replay
from inaproto.sim.frames.draw.swarm import draw_world
from tests.sim.third_nak import PARTS, PRODUCT, PROGRAM, SEED


@pytest.fixture(scope="module")
def failed() -> Log:
    return PARTS.record(draw_world(SEED), PROGRAM)


def test_a_failing_log_fails_again_at_the_same_event(failed: Log, tmp_path: Path) -> None:
    failed.write(tmp_path / "log")
    done = replay(read_log(tmp_path / "log"), PARTS, PROGRAM)
    assert failed.violation is not None
    assert done.same
    assert done.again == failed
    assert done.verdict() == f"fails at the same event {failed.violation.event}: no third NAK"


def test_a_log_draws_no_weather(failed: Log) -> None:
    """Its fates alone decide, whatever the configuration's weather says."""
    sunny = replace(failed.config, links=tuple(replace(link, weather=_STORM) for link in failed.config.links))
    done = replay(replace(failed, config=sunny), PARTS, PROGRAM)
    assert done.again.records == failed.records


def test_a_fault_that_is_gone_is_said_to_be_gone(failed: Log) -> None:
    done = replay(failed, PRODUCT, PROGRAM)
    assert not done.same
    assert done.again.violation is None
    assert "this run breaks no rule" in done.verdict()
    last = len(failed.records)  # at which the one stopped halfway and the other went on
    assert done.differs in (last, last + 1)
    assert "  in the log:" in done.verdict()


def test_a_run_that_passed_passes_again() -> None:
    done = replay(PRODUCT.record(draw_world(3), PROGRAM), PRODUCT, PROGRAM)
    assert done.same
    assert done.verdict().startswith("passes as in the log")


def test_the_first_event_that_differs_is_shown_from_both_sides(failed: Log) -> None:
    records = list(failed.records)
    records[40] = records[40] | {"at": records[40]["at"] + 1}
    records[50] = records[50] | {"node": 3}
    done = replay(replace(failed, records=records), PARTS, PROGRAM)
    assert done.differs == 41
    verdict = done.verdict()
    assert "breaks the same rule at the same event" in verdict
    assert "but the log differs at event 41: was it edited?" in verdict
    assert "first event that differs is 41" in verdict
    assert verdict.count("event 41 at") == 2


def test_a_log_of_a_world_that_cannot_be_is_refused(failed: Log) -> None:
    jobs = tuple(replace(job, mtu=257) for job in failed.config.jobs)
    with pytest.raises(ConfigError, match="no world can be as its header says"):
        replay(replace(failed, config=replace(failed.config, jobs=jobs)), PARTS, PROGRAM)


_STORM = replace(draw_world(SEED).links[0].weather, drop=0.9)
