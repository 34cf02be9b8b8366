"""The examples of deploy/ for Prometheus and Grafana name only metrics that the daemons tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import trio

from tests.clusters.loopback import open_cluster
from tests.daemon.scraping import Samples, labelled, scrape, value
from tests.daemon.test_controller_daemon import running

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def dashboards() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in (DEPLOY / "dashboards").glob("*.json")}


def expressions() -> list[str]:
    return [
        target["expr"]
        for board in dashboards().values()
        for one in board["panels"]
        for target in one["targets"]
    ]


async def told(directory: Path) -> Samples:
    """Of one daemon of each kind."""
    found: Samples = {}
    async with open_cluster(directory, 0, switch=False) as cluster:
        listens: dict[str, Any] = {"control_listen": "127.0.0.1:0"}  # so that it has a certificate
        await cluster.start_switch(metrics=str(directory / "switch.metrics"), **listens)
        await cluster.start_host(metrics=str(directory / "host.metrics"))
        for name in ("switch", "host"):
            found |= await scrape(directory / f"{name}.metrics")
    return found


async def test_a_dashboard_asks_for_metrics_that_there_are(runtime_dir: Path) -> None:
    found = await told(runtime_dir)
    async with running(runtime_dir, metrics=str(runtime_dir / "controller.metrics")) as daemon:
        await daemon.command("submit", "train", "--hosts", "2")
        status: dict[str, Any] = {}
        with trio.fail_after(600):
            while not status or not status["jobs"]["queued"]:  # it was planned for, and will stay so
                status = await daemon.ask(daemon.client.ask, "GET", "/v1/status")
        controller = await scrape(runtime_dir / "controller.metrics")
        assert labelled(controller, "controller_jobs", "state") == status["jobs"]
        assert value(controller, "controller_leads") == value(controller, "controller_term") == 1
        assert labelled(controller, "controller_agents", "presence") == {"up": 0, "unknown": 3, "gone": 0}
        assert value(controller, "build_info", role="controller", version=status["version"]) == 1
    names = {name for name, _ in (*found, *controller)}
    # Families without a sample yet, of which the help is told all the same.
    names |= {"inaproto_accelerator_dropped_packets_total", "inaproto_switch_blames_total"}
    assert expressions()
    for expression in expressions():
        asked = set(re.findall(r"inaproto_\w+", expression))
        assert asked <= names, (expression, asked - names)


def test_panels_do_not_overlap_and_have_titles() -> None:
    for name, board in dashboards().items():
        cells = [
            (x, y)
            for one in board["panels"]
            for x in range(one["gridPos"]["x"], one["gridPos"]["x"] + one["gridPos"]["w"])
            for y in range(one["gridPos"]["y"], one["gridPos"]["y"] + one["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells)), name
        assert max(x for x, _ in cells) < 24, name
        assert len({one["id"] for one in board["panels"]}) == len({one["title"] for one in board["panels"]})


def test_the_example_for_prometheus_names_the_ports_of_the_other_examples() -> None:
    text = (DEPLOY / "prometheus.yml").read_text()
    for name in ("switch", "host", "controller"):
        (address,) = re.findall(r'^# metrics = "(.*)"$', (DEPLOY / f"{name}.toml").read_text(), re.MULTILINE)
        assert f'"{address}"' in text, name
