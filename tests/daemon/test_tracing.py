"""Traces of all-reduces, as a collector of OpenTelemetry gets them from ranks and daemons."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inaproto
from inaproto.daemon.observe.status import ask_daemons
from inaproto.errors import ConfigError, LocalMisuse, Unsupported
from inaproto.tracing import opening
from tests.clusters.loopback import open_cluster, together
from tests.conftest import end_without
from tests.daemon.scraping import labelled, scrape
from tests.daemon.test_controller_daemon import running

if find_spec("opentelemetry") is not None:
    from tests.doubles.otlp import Collector, Received, collecting

OPERATIONS = 3
COUNT = 3000
NBYTES = COUNT * 4
NO_ROOM = "needs 98240 bytes of memory, it has 0 in all"
SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 4, "tracing": "on"}


@pytest.fixture(autouse=True)
def _tracing_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp") is None:
        end_without("opentelemetry", Unsupported("OpenTelemetry", "pip install 'inaproto[tracing]'"))
    monkeypatch.setattr(opening, "_of_process", {})


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        turn_on(monkeypatch, found)
        yield found
        tracing = opening._of_process.get(os.getpid())
        if tracing is not None:
            tracing.close()


def turn_on(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    for name, text in collector.environment.items():
        monkeypatch.setenv(name, text)


async def all_reduce(comms: list[inaproto.Communicator]) -> None:
    for work in [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in comms]:
        assert (await work)[0] == len(comms)


def spans(collector: Collector, name: str, count: int) -> list[Received]:
    """Those of that name, once they are there."""
    collector.wait(lambda: sum(span.name == name for span in collector.spans) >= count)
    found = [span for span in collector.spans if span.name == name]
    assert len(found) == count
    return sorted(found, key=lambda span: (span.said.get("inaproto.operation", 0), span.start_ns))


async def test_an_all_reduce_is_one_trace_of_ranks_and_hosts(runtime_dir: Path, collector: Collector) -> None:
    async with open_cluster(runtime_dir, 1, **SMALL) as cluster:
        await cluster.start_host(metrics=str(runtime_dir / "h1.metrics"))
        comms: dict[int, inaproto.Communicator] = {}

        async def join(rank: int) -> None:
            comms[rank] = await cluster.connect("j", rank, size=3, host=min(rank, 1))

        await together([lambda rank=rank: join(rank) for rank in range(3)])  # type: ignore[misc]
        for _ in range(OPERATIONS):
            await all_reduce(list(comms.values()))
        calls = spans(collector, "all_reduce", 3 * OPERATIONS)
        hosts = spans(collector, "host all_reduce", 2 * OPERATIONS)
        for index in range(OPERATIONS):
            of = [span for span in calls if span.said["inaproto.operation"] == index]
            below = [span for span in hosts if span.said["inaproto.operation"] == index]
            by_rank = {span.said["inaproto.rank"]: span for span in of}
            by_host = {span.said["inaproto.host"]: span for span in below}
            assert by_rank.keys() == {0, 1, 2}
            assert len({span.trace for span in of + below}) == 1
            assert not any(span.parent for span in of)
            assert by_host["h0"].parent == by_rank[0].span
            assert by_host["h0"].links == []
            assert by_host["h1"].parent == by_rank[1].span
            assert by_host["h1"].links == [(of[0].trace, by_rank[2].span)]
            assert by_host["h1"].said["inaproto.ranks"] == [1, 2]
            for span in of + below:
                assert span.said["inaproto.bytes"] == NBYTES
                assert span.said["inaproto.path"] == "switch"
                assert (span.said["inaproto.job"], span.said["inaproto.size"]) == ("j", 3)
                assert not span.is_error
            for span in below:
                assert "inaproto.fallback" not in span.said
                assert span.said["inaproto.packets_sent_again"] >= 0
                assert [name for name, _, _ in span.events] == ["all ranks here have called it"]
        assert len({span.trace for span in calls}) == OPERATIONS
        joins = spans(collector, "join", 3) + spans(collector, "host joins", 2)
        assert len({span.trace for span in joins}) == 1, "how the ring came about is one, too"
        assert {span.said["inaproto.ring_id"] for span in joins} == {hosts[0].said["inaproto.ring_id"]}
        assert {span.service for span in collector.spans} == {"inaproto rank", "inaproto host"}
        collector.wait(lambda: all(host.daemon.status()["spans"]["waiting"] == 0 for host in cluster.hosts))
        report = await ask_daemons(runtime_dir, [])
        made = {"sent": OPERATIONS + 1, "waiting": 0, "lost": 0}
        assert [host["spans"] for host in report.hosts] == [made, made]
        told = labelled(await scrape(runtime_dir / "h1.metrics"), "spans_total", "fate")
        assert told == {"sent": OPERATIONS + 1, "lost": 0}
        await together([comm.aclose for comm in comms.values()])


async def test_a_span_of_the_script_is_linked_and_the_daemon_traces_without_ranks_that_do(
    runtime_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    monkeypatch.setenv("INAPROTO_TRACING", "off")
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("untraced", 2)
        await all_reduce(comms)
        below = spans(collector, "host all_reduce", 2)
        assert [span.parent for span in below] == ["", ""]
        assert below[0].trace == below[1].trace, "though nobody told them"
        await together([comm.aclose for comm in comms])
        monkeypatch.setenv("INAPROTO_TRACING", "on")
        comms = await cluster.job("traced", 2)
        with TracerProvider().get_tracer("script").start_as_current_span("step") as step:
            await all_reduce(comms)
        its = step.get_span_context()
        for span in spans(collector, "all_reduce", 2):
            assert span.links == [(f"{its.trace_id:032x}", f"{its.span_id:016x}")]
        await together([comm.aclose for comm in comms])


async def test_a_way_round_the_switch_has_its_reason(runtime_dir: Path, collector: Collector) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await cluster.start_switch(memory_kib=0, tracing="on")
        for _ in range(2):
            await cluster.start_host()
        comms = await cluster.job("j", 2)
        await all_reduce(comms)
        for span in spans(collector, "host all_reduce", 2):
            assert span.said["inaproto.path"] == "chain"
            assert NO_ROOM in span.said["inaproto.fallback"]
        (ring,) = spans(collector, "switch ring", 1)
        assert (ring.service, ring.said["inaproto.path"]) == ("inaproto switch", "chain")
        assert NO_ROOM in ring.said["inaproto.fallback"]
        its = spans(collector, "host joins", 2)
        assert {span.trace for span in its} == {ring.trace}
        assert {span.said["inaproto.ring_id"] for span in its} == {ring.said["inaproto.ring_id"]}
        await together([comm.aclose for comm in comms])


async def test_packets_that_were_sent_again_are_told(runtime_dir: Path, collector: Collector) -> None:
    async with open_cluster(runtime_dir, 2, weather="drop=0.05", **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        done = 0
        while not cluster.hosts[0].nic.statistics()["retransmits"]:
            await all_reduce(comms)
            done += 1
        found = spans(collector, "host all_reduce", 2 * done)
        again = [s.said["inaproto.packets_sent_again"] for s in found if s.said["inaproto.host"] == "h0"]
        assert 0 <= sum(again) <= cluster.hosts[0].nic.statistics()["retransmits"]
        await together([comm.aclose for comm in comms])


async def test_a_host_daemon_that_follows_another_goes_on_with_its_spans(
    runtime_dir: Path, collector: Collector
) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        comms = await cluster.job("j", 2)
        await all_reduce(comms)
        first = comms[0].all_reduce(np.ones(COUNT, np.float32))
        await cluster.hosts[0].stop()
        await cluster.restart_host(0)
        second = comms[1].all_reduce(np.ones(COUNT, np.float32))
        assert [(await work)[0] for work in (first, second)] == [2, 2]
        last = [s for s in spans(collector, "all_reduce", 4) if s.said["inaproto.operation"] == 1]
        (call,) = [s for s in last if s.said["inaproto.rank"] == 0]
        assert [name for name, _, _ in call.events] == ["taken on by the next host daemon"]
        below = [s for s in spans(collector, "host all_reduce", 4) if s.parent == call.span]
        (own,) = below
        assert own.trace == call.trace
        assert {"ring ended", "ring begins"} <= {name for name, _, _ in own.events}
        recovers = {s.said["inaproto.host"]: s for s in spans(collector, "host recovers", 2)}
        assert recovers["h0"].said["inaproto.reason"] == "the host daemon before this one has gone"
        assert recovers["h0"].trace == recovers["h1"].trace
        await together([comm.aclose for comm in comms])


async def test_a_controller_tells_what_became_of_a_job(runtime_dir: Path, collector: Collector) -> None:
    async with running(runtime_dir, tracing="on") as daemon:
        for role, name in (("host", "h0"), ("host", "h1"), ("switch", "leaf")):
            daemon.agent(role, name)  # type: ignore[arg-type]
        await daemon.command("submit", "train", "--hosts", "2", "--ranks-per-host", "4")
        await daemon.until("train", "placed")
        await daemon.command("cancel", "train")
        await daemon.until("train", "cancelled")
        (placed,) = spans(collector, "controller placed", 1)
        assert placed.said["inaproto.hosts"] == ["h0", "h1"]
        assert (placed.said["inaproto.next_state"], placed.said["inaproto.job"]) == ("cancelled", "train")
        status = (await daemon.ask(daemon.client.status))["spans"]
        assert status["lost"] == 0
    its = [span for span in collector.spans if span.service == "inaproto controller"]
    assert [span.name for span in its][:1] == ["controller submitted"]
    assert len({span.trace for span in its}) == 1


@pytest.mark.parametrize("fault", ["hangs", "refuses", "away"])
async def test_a_collector_that_takes_nothing_holds_up_nobody(
    runtime_dir: Path, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting(hangs=fault == "hangs", answers=400 if fault == "refuses" else 200) as collector:
        turn_on(monkeypatch, collector)
        if fault == "away":
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
            comms = await cluster.job("j", 2)
            for _ in range(8):
                await all_reduce(comms)
            host = cluster.hosts[0].daemon
            collector.wait(lambda: host.status()["spans"]["lost"] > 0)
            told = host.status()["spans"]
            assert told["sent"] == 0
            assert told["waiting"] <= 2
            assert sum(told.values()) == 9
            await together([comm.aclose for comm in comms])
    if fault == "refuses":
        said = [
            r for r in caplog.records if r.getMessage().startswith("the collector of traces at http://127")
        ]
        assert said


def test_a_process_that_traces_nothing_imports_nothing_of_it() -> None:
    script = (
        "import sys, inaproto.cli, inaproto.client.communicator, inaproto.daemon.host.daemon\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    told = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=600)
    assert told == "[]\n"


def test_where_the_packages_are_missing_daemons_say_so_and_ranks_train(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "inaproto.tracing.spans", raising=False)
    with pytest.raises(ConfigError, match=r"^tracing: .*pip install 'inaproto\[tracing\]'"):
        opening.tracing_of_daemon("on", "host", "h0")
    assert opening.tracing_of_process({"INAPROTO_TRACING": "on"}) is None
    assert "inaproto[tracing]" in caplog.text
    assert opening.tracing_of_process({}) is None
    with pytest.raises(LocalMisuse, match="must be on or off"):
        opening.tracing_of_process({"INAPROTO_TRACING": "yes"})


def test_variables_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
    with pytest.raises(ConfigError, match=r"^tracing: .*OTEL_"):
        opening.tracing_of_daemon("on", "host", "h0")
