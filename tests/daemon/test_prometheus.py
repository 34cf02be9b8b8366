"""A real Prometheus with the rules of the example scrapes real daemons: no panel of the dashboard is empty,
and an alert comes with its words."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import trio

from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto.daemon.net.unix_sockets import connect_unix
from inaproto.faults.collective import CollectiveFaults
from inaproto.wire.control_messages import Ready, Welcome
from inaproto_adapters.memory import tree_named
from tests.clusters.loopback import DEADLINE_S, open_cluster
from tests.clusters.switch import ControlHost
from tests.daemon import test_controller_daemon
from tests.daemon.alerting import DEPLOY
from tests.daemon.scraping import fetch
from tests.daemon.test_controller_daemon import running
from tests.unit.rendezvous_members import hello, member

ANY_PORT = "127.0.0.1:0"
SCRAPE_S = 1
RATE_INTERVAL = "15s"
"""What Grafana puts for ``$__rate_interval`` is some scrapes, too."""
LOOK_S = 0.2
EMPTY_S = 240
"""Longer than any panel is empty on a machine that does much else."""
COUNT = 2000
JOBS: dict[str, dict[str, Any]] = {"plain": {}, "sharp": {"exact_plan": False}, "shared": {"path": "shared"}}
WEATHER = "drop=0.01,corrupt=0.01"


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, path: str, **query: str) -> Any:
        status, text = await fetch(("127.0.0.1", self._port), f"{path}?{urlencode(query)}", accept="*/*")
        assert status == 200, text
        return json.loads(text)["data"]

    async def value(self, expression: str) -> list[Any]:
        found: list[Any] = (await self.ask("/api/v1/query", query=expression))["result"]
        return found

    async def until(self, expression: str) -> list[Any]:
        """The test's deadline bounds it."""
        while not (found := await self.value(expression)):  # noqa: ASYNC110  it is another process's
            await trio.sleep(LOOK_S)
        return found


@asynccontextmanager
async def prometheus(program: Path, directory: Path, targets: list[str]) -> AsyncIterator[Prometheus]:
    """One that scrapes ``targets``, and whose alerts fire at once."""
    rules = re.sub(r"^( +for:) \w+$", r"\1 0s", (DEPLOY / "alerts.yml").read_text(), flags=re.MULTILINE)
    (directory / "alerts.yml").write_text(rules)
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "inaproto", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # YAML, too
    argv = [str(program), f"--config.file={directory / 'prometheus.yml'}"]
    argv += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={ANY_PORT}"]
    process = await trio.lowlevel.open_process(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(_read_log, process)
            its = Prometheus(port)
            yield its
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            await process.wait()
            assert process.stderr is not None
            await process.stderr.aclose()


async def _read_log(process: trio.Process, *, task_status: trio.TaskStatus[int]) -> None:
    """Its port; what follows is read, so that it can be written."""
    text = ""
    assert process.stderr is not None
    async for chunk in process.stderr:
        text += chunk.decode(errors="replace")
        if found := re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', text):
            task_status.started(int(found[1]))
            break
    else:
        raise AssertionError(f"Prometheus has ended: {text}")
    async for _ in process.stderr:
        pass


def addresses(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of all daemons that were started, in this order."""
    return re.findall(r"metrics at http://([\d.:]+)/metrics", caplog.text)


def panels() -> dict[str, list[str]]:
    board = json.loads((DEPLOY / "dashboards" / "inaproto.json").read_text())
    return {
        panel["title"]: [one["expr"].replace("$__rate_interval", RATE_INTERVAL) for one in panel["targets"]]
        for panel in board["panels"]
    }


async def test_no_panel_is_empty_and_alerts_have_their_words(
    program: Callable[[str], Path],
    runtime_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    binary = program("prometheus")
    monkeypatch.setattr(test_controller_daemon, "DEADLINE_S", DEADLINE_S)
    caplog.set_level("INFO", "inaproto.metrics")
    tree = tree_named("board")
    tree.faults = CollectiveFaults(failed=200)
    options: dict[str, Any] = {"mtu": 256, "message_packets": 4, "transport_timeout": 12}
    options |= {"collective": "memory-collective:board", "collective_kib_min": 0, "metrics": ANY_PORT}
    async with open_cluster(runtime_dir, 0, weather=WEATHER, switch=False, **options) as cluster:
        await cluster.start_switch(metrics=ANY_PORT, control_listen=ANY_PORT)
        hosts = [await cluster.start_host() for _ in range(2)]
        async with running(runtime_dir, metrics=ANY_PORT) as controller:
            await controller.command("submit", "train", "--hosts", "2")
            targets = addresses(caplog)
            assert len(targets) == 4
            async with prometheus(binary, runtime_dir, targets) as its:
                stranger = await rule_breaker(runtime_dir)
                async with trio.open_nursery() as nursery:
                    for name, wishes in JOBS.items():
                        nursery.start_soon(train, await cluster.job(name, 2, **wishes))
                    await assert_no_panel_is_empty(its)
                    nursery.cancel_scope.cancel()
                await hosts[1].stop()
                down = 'ALERTS{alertname="InaprotoDaemonDown",alertstate="firing"}'
                assert len(await its.until(down)) == 1
                alerts = (await its.ask("/api/v1/alerts"))["alerts"]
                (one,) = [one for one in alerts if one["labels"]["alertname"] == "InaprotoDaemonDown"]
                assert one["annotations"]["summary"] == f"{targets[2]} gives no metrics"
                assert not [one for one in alerts if "<no value>" in json.dumps(one)]
                stranger.close()


async def assert_no_panel_is_empty(its: Prometheus) -> None:
    empty = {one: title for title, expressions in panels().items() for one in expressions}
    with trio.move_on_after(EMPTY_S):
        while empty := {one: empty[one] for one in empty if not await its.value(one)}:  # noqa: ASYNC110
            await trio.sleep(LOOK_S)
    assert not empty


async def rule_breaker(directory: Path) -> ControlStream:
    """A host that is ready for a ring which there is not yet: the switch blames it."""
    stream = ControlStream(await connect_unix(directory / CONTROL_SOCKET, "test"))
    await stream.send(hello(7))
    await ControlHost(stream).expect(Welcome)
    await stream.send(member(0, host=7, size=2))
    await stream.send(Ready(job="train", rank=0))
    return stream


async def train(comms: list[Any]) -> None:
    while True:
        for work in [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in comms]:
            await work
        await trio.sleep(0.05)
