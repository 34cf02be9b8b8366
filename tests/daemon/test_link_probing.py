"""Hosts measure their links when they arrive, and the path of a job follows; in virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from inaproto.core.rendezvous.events import SessionId
from inaproto.core.rendezvous.link_measures import LinkMeasures
from inaproto.daemon.host.link_probing import LinkProbing
from inaproto.daemon.observe.status_tables import costs_note, fallback_note
from inaproto.daemon.switch.link_probes import PROBE_NS, LinkProbes
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.probe import LinkProbe, LinkProbed, LinkProbeWord
from tests.clusters.jobs import close_all
from tests.clusters.memory import MemoryCluster, in_memory, run_world

KIB = 1024


def status(cluster: MemoryCluster) -> dict[str, Any]:
    switch = cluster.switches[""].daemon
    assert switch is not None
    assert switch.plane is not None
    return switch.plane.status()


async def measured(cluster: MemoryCluster, links: int) -> list[dict[str, Any]]:
    """As soon as so many are."""
    while True:
        found: list[dict[str, Any]] = status(cluster)["host_links"]["measured"]
        if len(found) >= links:
            return found
        await trio.sleep(0.001)


async def sums_are_exact(cluster: MemoryCluster, hosts: int) -> tuple[str, dict[str, Any]]:
    """Returns by which path, and what the switch says of the job."""
    comms = await cluster.job("train", hosts)
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(5000).astype(np.float32) for _ in range(hosts)]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected = expected + array
    for work in [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]:
        assert (await work).tobytes() == expected.tobytes()
    path = str(comms[0].statistics().recent[0].path)
    [job] = status(cluster)["jobs"]
    await close_all(comms)
    return path, job


@in_memory("probing", hosts=3, switch={"link_probe_kib": KIB})
async def test_each_host_that_arrives_measures_its_link_and_the_costs_of_a_job_are_computed_from_that(
    cluster: MemoryCluster,
) -> None:
    found = await measured(cluster, 2)
    assert len({host for link in found for host in link["hosts"]}) == 3
    for link in found:
        # Two links of 5 us and 10 Gbit/s are in the way, and a few bytes; headers are no payload.
        assert 10_000 <= link["latency_ns"] < 13_000
        assert 7_000_000_000 < link["rate_bps"] < 10_000_000_000
    path, job = await sums_are_exact(cluster, 3)
    assert path == "switch"
    assert job["costs"].startswith("switch: 1 level, predicted ")
    assert {"overlay", "chain"} <= set(job["costs"].split())
    assert job["links"].startswith("measured: ")
    assert costs_note(job).endswith(f"; links {job['links']}")
    assert status(cluster)["host_links"]["not_measured"] == {}
    for life in cluster.hosts.values():
        daemon = life.daemon
        assert daemon is not None
        assert daemon.fabric is not None


@in_memory("probing slow", hosts=4, switch={"link_probe_kib": KIB, "switch_mbps": 1})
async def test_hosts_sum_themselves_where_the_switch_adds_up_more_slowly_and_the_bytes_are_the_same(
    cluster: MemoryCluster,
) -> None:
    await measured(cluster, 3)
    path, job = await sums_are_exact(cluster, 4)
    assert path in ("overlay", "chain")
    assert job["path"] == path
    assert f"predicted to be faster by {path} than in the switches" in fallback_note(job)
    assert "switches 1 Mbit/s" in job["links"]


@in_memory("configured", hosts=3, switch={"link_probe_kib": KIB, "link_mbps": 10_000})
async def test_configured_figures_are_used_and_nothing_is_measured(cluster: MemoryCluster) -> None:
    path, job = await sums_are_exact(cluster, 3)
    assert path == "switch"
    assert job["links"] == "configured: 10 us a hop, 10000 Mbit/s"
    links = status(cluster)["host_links"]
    assert links["measured"] == []
    assert links["configured"] == "10 us a hop, 10000 Mbit/s"


def test_a_link_in_weather_is_measured_too() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await measured(cluster, 2)
        await sums_are_exact(cluster, 3)

    weather = "drop=0.01,duplicate=0.01,reorder=0.01"
    run_world("probing weather", scenario, hosts=3, switch={"link_probe_kib": KIB}, weather=weather)


@in_memory("probing again", hosts=2, switch={"link_probe_kib": KIB})
async def test_a_host_that_comes_back_soon_does_not_measure_the_same_link_again(
    cluster: MemoryCluster,
) -> None:
    before = await measured(cluster, 1)
    await cluster.hosts[1].stop()
    await cluster.start_host(1)
    while len(status(cluster)["hosts"]) < 2:  # noqa: ASYNC110
        await trio.sleep(0.01)
    await trio.sleep(5)
    assert status(cluster)["host_links"]["measured"] == before


def test_a_switch_gives_up_a_probe_of_which_nothing_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        while not status(cluster)["host_links"]["not_measured"]:  # noqa: ASYNC110
            await trio.sleep(1)
        assert PROBE_NS <= trio.current_time() * S < 2 * PROBE_NS
        [why] = status(cluster)["host_links"]["not_measured"].values()
        assert why == "it is not over within 120 s"

    monkeypatch.setattr(LinkProbing, "heard", lambda *_: None)
    run_world("probing silence", scenario, hosts=2, switch={"link_probe_kib": KIB})


# --- the switch's side


class Desk:
    def __init__(self) -> None:
        self.told: list[tuple[int, Message]] = []
        self.found: list[tuple[tuple[str, str], int, int]] = []
        self.now = Instant(0)
        self.probes = LinkProbes(1024, self.tell, self.measured)

    def tell(self, session: SessionId, message: Message) -> None:
        self.told.append((session, message))

    def measured(self, hosts: tuple[str, str], latency_ns: int, rate_bps: int) -> None:
        self.found.append((hosts, latency_ns, rate_bps))

    def arrive(self, *sessions: int) -> None:
        for session in sessions:
            self.probes.host_arrived(SessionId(session), f"h{session}", LinkMeasures(), self.now)

    def said(self, session: int, message: LinkProbeWord | LinkProbed) -> None:
        self.probes.said(SessionId(session), message, self.now)

    def leave(self, session: int) -> None:
        self.probes.session_ended(SessionId(session), self.now)

    def deadline(self) -> Instant | None:
        return self.probes.deadline

    def wake(self, after_ns: int) -> None:
        self.now = Instant(self.now + after_ns)
        self.probes.woke(self.now)


def test_a_host_is_in_one_probe_at_a_time() -> None:
    desk = Desk()
    desk.arrive(0, 1, 2, 3)
    assert desk.told == [
        (1, LinkProbe(id=1, peer="h0", nbytes=1024)),
        (3, LinkProbe(id=2, peer="h2", nbytes=1024)),
    ]
    desk.said(1, LinkProbed(id=1, latency_ns=5, rate_bps=6))
    assert desk.found == [(("h1", "h0"), 5, 6)]
    desk.said(3, LinkProbed(id=2, latency_ns=7, rate_bps=8))
    assert desk.told[2:] == [(2, LinkProbe(id=3, peer="h1", nbytes=1024))]


def test_words_pass_between_the_two_of_a_probe_alone_and_each_says_what_is_its_own() -> None:
    desk = Desk()
    desk.arrive(0, 1, 2)
    del desk.told[:]
    offer, answer = LinkProbeWord(id=1, kind="offer"), LinkProbeWord(id=1, kind="answer")
    end = LinkProbeWord(id=1, kind="end")
    for session, word in [(1, answer), (0, offer), (0, end), (2, offer), (2, answer), (9, end)]:
        desk.said(session, word)
    desk.said(0, LinkProbed(id=1, latency_ns=1, rate_bps=1))
    desk.said(1, LinkProbeWord(id=77, kind="offer"))
    assert desk.told == []
    assert desk.found == []
    for session, word in [(1, offer), (0, answer), (1, end)]:
        desk.said(session, word)
    assert desk.told == [(0, offer), (1, answer), (0, end)]


def test_what_could_not_be_measured_is_said_with_the_reason() -> None:
    desk = Desk()
    desk.arrive(0, 1, 2)
    desk.said(1, LinkProbed(id=1, latency_ns=0, rate_bps=0, why="its queue pair has failed"))
    assert desk.probes.failed == {"h1 to h0": "its queue pair has failed"}
    desk.leave(1)
    assert desk.probes.failed["h2 to h1"] == "a host of it is gone"
    desk.arrive(3)
    assert desk.told[-1] == (3, LinkProbe(id=3, peer="h2", nbytes=1024))


def test_a_probe_of_which_nothing_is_heard_is_over_and_the_other_end_is_measured() -> None:
    desk = Desk()
    assert desk.deadline() is None
    desk.arrive(0, 1)
    desk.wake(1 * S)
    desk.arrive(2, 3)  # a probe with host 1 waits for its first, the one with host 2 has its own time
    assert [message for _, message in desk.told] == [
        LinkProbe(id=1, peer="h0", nbytes=1024),
        LinkProbe(id=2, peer="h2", nbytes=1024),
    ]
    assert desk.deadline() == PROBE_NS
    desk.said(3, LinkProbed(id=2, latency_ns=5, rate_bps=6))
    desk.wake(PROBE_NS - 1 * S - 1)
    assert desk.probes.failed == {}
    desk.wake(1)
    assert desk.probes.failed == {"h1 to h0": "it is not over within 120 s"}
    assert desk.told[2:] == [(2, LinkProbe(id=3, peer="h1", nbytes=1024))]
    assert desk.deadline() == 2 * PROBE_NS
    desk.said(1, LinkProbed(id=1, latency_ns=5, rate_bps=6))
    assert [hosts for hosts, *_ in desk.found] == [("h3", "h2")]
    desk.said(2, LinkProbed(id=3, latency_ns=5, rate_bps=6))
    assert desk.deadline() is None


@pytest.mark.parametrize("nbytes", [0])
def test_by_default_nothing_is_measured(nbytes: int) -> None:
    desk = Desk()
    desk.probes = LinkProbes(nbytes, desk.tell, desk.measured)
    desk.arrive(0, 1, 2)
    assert desk.told == []
