"""Worlds whose host daemons die and are replaced under their processes: same bytes, and no rank is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto.sim.campaign.kinds import WorldKind, draw_kind, kind_of
from inaproto.sim.campaign.log import read_log
from inaproto.sim.campaign.marks import declared_of, meaning_of, seeds_min_of
from inaproto.sim.campaign.replay import replay
from inaproto.sim.frames.draw.successors import draw_successors
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, WorldConfig, draw_world
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.units import MS, S
from inaproto_hil.soak import soak
from tests.seeds import all_seeds, seeds
from tests.sim.third_nak import PRODUCT, PROGRAM
from tests.sim.worlds import run

REPLACED = "a host daemon was replaced in the middle of a job"
WITHIN = "a host daemon was replaced in the middle of an all-reduce"
TORN = "a result was copied again that a daemon had died over"
UNTOLD = "a successor told of a result that its predecessor had taken"
ANEW = "a job finished after it had started anew"
ELEMENTS = (400, 3, 700, 90)


def two_hosts(*faults: Fault, **changes: Any) -> WorldConfig:
    """One switch, a job of a rank on each of two hosts, clear weather."""
    job = JobConfig("job0", (0, 1), ELEMENTS, think_ns=MS, window_messages=2, depth=2)
    config = WorldConfig("successors", (replace(job, **changes),), (LinkConfig(),) * 2, recover_ns=2 * S)
    return replace(config, faults=faults)


def dies(orders: int, *, operation: int = 1, target: int = 0, at_ns: int = 1) -> Fault:
    """The daemon of that host, after so many of its orders since an all-reduce was called."""
    return Fault(at_ns, FaultKind.DAEMON_CRASH, target, MS, job=0, operation=operation, process=orders)


def test_host_daemons_die_in_no_other_worlds() -> None:
    """There jobs may end with their rings."""
    assert all(fault.kind is not FaultKind.DAEMON_CRASH for n in range(100) for fault in draw_world(n).faults)


@pytest.mark.parametrize("seed", seeds(24))
def test_every_rule_holds(seed: int) -> None:
    result = run(draw_successors(seed))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"


def test_results_for_a_host_without_a_link_leave_by_none() -> None:
    """The first one on its next link was taken for one that had left before its turn."""
    assert run(draw_successors(1200)).violation is None


def test_every_rule_holds_in_hundreds_and_all_marks_are_seen() -> None:
    seen: set[str] = set()
    for seed in all_seeds(300):  # a thousand: inaproto soak --world successors --seeds 1000
        result = run(draw_successors(seed))
        assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
        seen.update(result.marks)
    assert set(declared_of(WorldKind.SUCCESSORS)) <= seen


@pytest.mark.parametrize("path", ["auto", "chain", "ring", "overlay"])
@pytest.mark.parametrize("operation", range(len(ELEMENTS)))
def test_a_daemon_dies_after_each_of_its_orders(operation: int, path: str) -> None:
    """In the middle of the next one, where that copies a result."""
    seen: dict[str, int] = {}
    for orders in range(40):
        result = run(two_hosts(dies(orders, operation=operation), path=path))
        assert result.violation is None, f"{orders} orders: {result.violation}"
        assert result.operations_done == 2 * len(ELEMENTS), orders
        assert ANEW not in result.marks, orders
        for mark, count in result.marks.items():
            seen[mark] = seen.get(mark, 0) + count
    assert seen[REPLACED] > 5
    assert seen[TORN]
    assert seen[UNTOLD]


def test_the_successor_dies_as_well() -> None:
    """After each of its first orders: before it has a switch, before its ring, and in it."""
    for orders in range(1, 30):
        for again in (0, 2, 5, 9):
            faults = dies(orders), dies(again, at_ns=1_000_000 + again * 10_000)
            result = run(two_hosts(*faults, window_messages=1))
            assert result.violation is None, f"{orders}, {again}: {result.violation}"
            assert result.operations_done == 2 * len(ELEMENTS)


def test_both_daemons_die() -> None:
    for orders in range(30):
        result = run(two_hosts(dies(orders), dies(orders * 7 % 30, target=1, at_ns=20_000)))
        assert result.violation is None, f"{orders}: {result.violation}"
        assert result.operations_done == 2 * len(ELEMENTS)


def test_what_is_drawn() -> None:
    drawn = [draw_successors(seed) for seed in range(40)]
    assert all(kind_of(config) is WorldKind.SUCCESSORS for config in drawn)
    assert all(config.recover_ns for config in drawn)
    jobs = [job for config in drawn for job in config.jobs]
    assert not any(job.elastic or job.collective for job in jobs)
    assert {job.path for job in jobs} >= {"auto", "shared"}
    deaths = [fault for config in drawn for fault in config.faults if fault.kind is FaultKind.DAEMON_CRASH]
    assert any(fault.process for fault in deaths)
    assert not all(fault.process for fault in deaths)


def test_a_log_of_such_a_world_replays(tmp_path: Path) -> None:
    config = two_hosts(dies(9))
    assert WorldConfig.from_record(config.as_record()) == config
    PRODUCT.record(config, PROGRAM).write(tmp_path / "log")
    assert replay(read_log(tmp_path / "log"), PRODUCT, PROGRAM).same


def test_the_command_line_knows_these_worlds() -> None:
    digest = CliRunner().invoke(soak, ["--world", "successors", "--seed", "4", "--digest"])
    assert digest.output == PRODUCT.run(draw_kind(4, WorldKind.SUCCESSORS)).digest + "\n"
    assert seeds_min_of(WorldKind.SUCCESSORS) == 1000
    for needed in (REPLACED, WITHIN, TORN, UNTOLD):
        assert needed in declared_of(WorldKind.SUCCESSORS)
        assert needed not in declared_of(WorldKind.RECOVERY)
        assert meaning_of(needed)
