"""Jobs that a controller places by PARING on an irregular network of real daemons, and what links carry.

``inaproto bench paring-live`` does the same with 200 jobs.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from inaproto_controller.service.job_command import job as job_command
from inaproto_hil.bench.paring_live import drawn
from inaproto_hil.bench.paring_live.command import of_live, of_tally, summary
from inaproto_hil.bench.paring_live.live import Campaign, Played, play
from inaproto_hil.bench.paring_live.replay import Tally, Turnover, replayed
from inaproto_hil.rigs.irregular_network import RunningNetwork, running_network

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 500
SWITCHES, HOSTS, JOBS = 12, 14, 6


async def test_links_carry_what_was_planned_with_the_hosts_and_capacities_are_kept(runtime_dir: Path) -> None:
    network = drawn.network(3, switches=SWITCHES, hosts=HOSTS)
    coming = drawn.arrivals(3, JOBS, hosts=HOSTS)
    shown: list[str] = []

    async def show(on: RunningNetwork, job: Played) -> None:
        found = await trio.to_thread.run_sync(
            CliRunner().invoke, job_command, ["show", "--dir", str(on.settings.dir), job.name]
        )
        shown.append(found.output)

    async with running_network(
        network, runtime_dir, deadline_s=DEADLINE_S, placement="paring", report_ms=500
    ) as on:
        status = await on.status()
        assert status["placement"].startswith("paring, with trees; where there is none, first fit: ")
        campaign = await play(on, coming)
        await show(on, campaign.jobs[-1])
    told = summary(campaign)
    assert told["jobs"] == JOBS
    assert told["with_tree"] > 0
    assert told["is_right"], [job.document() for job in campaign.jobs]
    assert told["looks"] == JOBS
    again = Tally()
    for _, tree in replayed(network.live_trees(runtime_dir), network.hosts, coming):
        again.add(tree)
    assert of_live(campaign) == of_tally(again), "the planner's prediction, without daemons"
    last = campaign.jobs[-1]
    assert f"planned: hosts and tree together; {last.planned['rate_gbit_s']} Gbit/s" in shown[0]


def played(**fields: Any) -> Played:
    carried = [{"from": "h0", "to": "s", "per_byte": 1}, {"from": "h1", "to": "s", "per_byte": 1}]
    planned = {"root": "s", "rate_gbit_s": "2", "links": 2, "reason": "", "carried": carried}
    job = Played("a", ("h0", "h1"), planned)
    job.measured = job.expected
    for name, value in fields.items():
        setattr(job, name, value)
    return job


def test_a_campaign_is_right_only_if_every_byte_is() -> None:
    def is_right(*jobs: Played, over: tuple[str, ...] = ()) -> bool:
        return bool(summary(Campaign(list(jobs), over=list(over)))["is_right"])

    good = played()
    assert is_right(good)
    assert not is_right(good, over=("s, look 1: 9 of 8",))
    fewer = {link: nbytes - 1 for link, nbytes in good.expected.items()}
    for fault in (
        {"measured": fewer},
        {"measured": None},
        {"strays": 1},
        {"ring_differs": True},
        {"wrong": 1},
    ):
        assert not is_right(good, played(**fault))
    bare = Played("b", ("h0", "h1"), {"by": "roots", "reason": "no switch"})
    assert is_right(good, bare)
    assert of_live(Campaign([good, bare]))["admitted"] == 0.5
    assert of_live(Campaign([good, bare]))["rate_gbit_s"] == 2.0
    assert of_tally(Tally())["admitted"] is None


def test_jobs_leave_after_so_many_further_ones() -> None:
    coming = [drawn.Arrival("a", 2, 2), drawn.Arrival("b", 2, 1), drawn.Arrival("c", 2, 3)]
    turnover = Turnover(coming)
    seen = []
    for leaving, job in turnover.steps():
        seen.append((leaving, None if job is None else job.name))
        if job is not None:
            turnover.placed(job)
    assert seen == [([], "a"), ([], "b"), (["a", "b"], "c"), ([], None), ([], None), (["c"], None)]


def test_whoever_fits_when_one_has_left_does_not_wait_for_the_next_to_leave() -> None:
    """As the controller has it: of two that leave at the same time one is first."""
    seen: list[tuple[int, list[str]]] = []

    class Live:
        def free(self, taken: list[str]) -> list[str]:
            return list(taken)

        def placed(self, count: int, idle: list[str], free: list[str], first: list[str]) -> Any:
            seen.append((count, free))
            return SimpleNamespace(hosts=tuple(first), tree=f"tree of {count}")

    coming = [drawn.Arrival("a", 2, 3), drawn.Arrival("b", 3, 2), drawn.Arrival("c", 1, 1)]
    live: Any = Live()
    assert [job.name for job, _ in replayed(live, ["h0", "h1", "h2", "h3", "h4"], coming)] == ["a", "b", "c"]
    assert seen == [(2, []), (3, ["tree of 2"]), (1, ["tree of 3"])]


def test_what_is_drawn_is_the_same_each_time_and_fits_a_fabric(runtime_dir: Path) -> None:
    for seed in range(20):
        network = drawn.network(seed, switches=SWITCHES, hosts=HOSTS)
        assert network == drawn.network(seed, switches=SWITCHES, hosts=HOSTS)
        fabric = network.fabric(runtime_dir)
        assert [entry.name for entry in fabric.entries] == list(network.above)
        assert len(network.capacities) == 9
        assert all(Fraction(capacity) > 0 for capacity in network.capacities.values())
    assert drawn.arrivals(1, 3, hosts=HOSTS) != drawn.arrivals(2, 3, hosts=HOSTS)
