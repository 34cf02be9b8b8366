"""--metrics of host and switch: what Prometheus reads is what the status says."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.daemon.net.metrics_server import serve_metrics
from inaproto.daemon.observe.metric_families import Families
from inaproto.daemon.observe.status import ask_daemons
from inaproto.errors import ConfigError
from tests.clusters.loopback import open_cluster, together
from tests.daemon.scraping import fetch, labelled, scrape, value

OPERATIONS = 5
COUNT = 3000
SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 4}


async def test_metrics_are_those_of_the_status(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await cluster.start_switch(metrics=str(runtime_dir / "switch.metrics"))
        for number in range(2):
            await cluster.start_host(metrics=str(runtime_dir / f"h{number}.metrics"))
        idle = await scrape(runtime_dir / "h0.metrics")
        assert labelled(idle, "host_operations_total", "path") == dict.fromkeys(
            ("switch", "chain", "overlay", "ring", "local", "sharp"), 0
        ), "told before there are any"
        comms = await cluster.job("secret-name", 2)
        for _ in range(OPERATIONS):
            for work in [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in comms]:
                assert (await work)[0] == 2
        host, switch = await scrape(runtime_dir / "h0.metrics"), await scrape(runtime_dir / "switch.metrics")
        report = await ask_daemons(runtime_dir, [])
        assert not report.problems, "a socket of metrics is not asked for a status"
        assert report.switch is not None
        (status,) = [one for one in report.hosts if one["name"] == "h0"]

        assert labelled(host, "host_operations_total", "path")["switch"] == OPERATIONS
        assert labelled(host, "host_reduced_bytes_total", "path")["switch"] == OPERATIONS * COUNT * 4
        assert value(host, "host_operation_seconds_total", path="switch") > 0
        assert status["totals"]["operations_by_path"] == {"switch": OPERATIONS}
        assert value(host, "host_rings", phase="running", path="switch") == 1
        assert value(host, "host_connected") == value(host, "host_ranks") == 1
        assert value(host, "host_connections_total") == status["switch"]["connections"]
        nic = labelled(host, "host_nic_events_total", "event")
        assert nic.keys() == status["nic"].keys()
        assert nic["bytes_sent"] > OPERATIONS * COUNT * 4

        counters = report.switch["accelerator"]["counters"]
        assert value(switch, "accelerator_aggregated_in_total") == counters["aggregated_in"] > 0
        for name in counters.keys() - {"dropped"}:
            assert value(switch, f"accelerator_{name}_total") == counters[name]
        assert value(switch, "switch_rings_made_total") == 1
        assert value(switch, "switch_hosts") == value(switch, "switch_ports") == 2
        assert value(switch, "switch_jobs", phase="running", path="switch") == 1
        assert value(switch, "switch_received_bytes_total") > 0
        assert value(switch, "accelerator_memory_bytes") == report.switch["accelerator"]["memory_bytes"]
        told = [labels for _, labels in (*host, *switch) if "secret-name" in dict(labels).values()]
        assert not told, "no name of a job is a label"
        await together([comm.aclose for comm in comms])
        after = await scrape(runtime_dir / "h0.metrics")
        assert value(after, "host_operations_total", path="switch") == OPERATIONS, "rings end, counts do not"
        assert value(after, "host_ranks") == 0


async def test_a_job_that_the_switch_cannot_sum_is_told(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await cluster.start_switch(memory_kib=0, metrics=str(runtime_dir / "switch.metrics"))
        for number in range(2):
            await cluster.start_host(metrics=str(runtime_dir / f"h{number}.metrics"))
        comms = await cluster.job("j", 2)
        for work in [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in comms]:
            await work
        switch = await scrape(runtime_dir / "switch.metrics")
        assert value(switch, "switch_jobs_not_summed") == value(switch, "switch_fallbacks_total") == 1
        host = await scrape(runtime_dir / "h1.metrics")
        assert value(host, "host_operations_total", path="chain") == 1
        await together([comm.aclose for comm in comms])


def build(status: Mapping[str, Any]) -> Any:
    families = Families()
    families.gauge("x", "What.", status["x"])
    return families.made


async def test_over_tcp_too_and_what_is_asked_wrongly_harms_nobody(runtime_dir: Path) -> None:
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            where = "127.0.0.1:0", build, lambda: {"x": 7}
            url = await nursery.start(serve_metrics, *where)
            port = int(url.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as idle:
                idle.sendall(b"no HTTP at all, and never ended")
            with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1"):
                await serve_metrics(f"127.0.0.1:{port}", build, dict)
            text = ""
            for path, status in (("/", 404), ("/metrics/x", 404), ("/metrics", 200)):
                found, text = await fetch(("127.0.0.1", port), path)
                assert found == status
            assert "inaproto_x 7.0" in text
            status, text = await fetch(
                ("127.0.0.1", port), "/metrics", accept="application/openmetrics-text; version=1.0.0"
            )
            assert status == 200
            assert text.endswith("# EOF\n")
            nursery.cancel_scope.cancel()
    (runtime_dir / "x.metrics").touch()
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        await serve_metrics(str(runtime_dir / "x.metrics"), build, dict)
