"""Each alert of ``deploy/alerts.yml`` fires on a fault that is planted in real daemons, and not before.

``tests/daemon/alerting.py`` says how what they tell becomes an hour. Faults of controllers are in
``tests/daemon/test_alerts_controller.py``; a real Prometheus is asked in
``tests/daemon/test_prometheus.py``.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import trio

from inaproto.ca.identity import Role
from inaproto.core.host.engines.two_paths import Binding
from inaproto.core.host.operations import INA
from inaproto.daemon.host.turns import Turns
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.switch.daemon import run_switch
from inaproto.faults.collective import NO_FAULTS, CollectiveFaults
from inaproto.parts import links_of
from inaproto.ports import load_adapter
from inaproto.units import Epoch, Instant, OpIndex
from inaproto_adapters.memory import tree_named
from inaproto_hil.rigs.running_fabric import running_fabric
from tests.clusters.fabrics import two_spines
from tests.clusters.loopback import DEADLINE_S, Cluster, open_cluster, together
from tests.clusters.secure import secure_switch
from tests.daemon.alerting import DEPLOY, RULES, Scraped, Told, assert_fires, judged, says, until_scraped
from tests.daemon.scraping import Samples, value
from tests.namespaces import join, namespaces, require_namespaces

SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 4, "transport_timeout": 22}
"""NICs that wait 17 s before they send anything again: no packet is retransmitted without a fault."""
OPERATIONS = 5
COUNT = 3000


async def scraped_cluster(
    cluster: Cluster, scraped: Scraped, directory: Path, hosts: int = 2, **switch: Any
) -> Any:
    """A switch and hosts of it that are scraped; the switch."""
    found = await cluster.start_switch(metrics=scraped.add("switch", directory), **switch)
    for number in range(hosts):
        await cluster.start_host(metrics=scraped.add(f"h{number}", directory))
    return found


async def add(comms: list[Any], operations: int = OPERATIONS) -> None:
    for _ in range(operations):
        for work in [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in comms]:
            assert (await work)[0] == len(comms)


async def test_a_green_run_is_silent(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        before = await scraped.look()
        comms = await cluster.job("j", 2)
        await add(comms)
        assert_fires(promtool, runtime_dir, Told.of(before, await scraped.look()), [])
        await together([comm.aclose for comm in comms])
        assert_fires(promtool, runtime_dir, Told.of(before, await scraped.look()), [])


async def test_a_host_that_is_gone(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        before = await scraped.look()
        await cluster.hosts[1].stop()
        during = await until_scraped(scraped, lambda found: found["h1"] is None)
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoDaemonDown"])


async def test_a_switch_that_is_gone(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        switch = await scraped_cluster(cluster, scraped, runtime_dir)
        before = await scraped.look()
        await switch.stop()
        during = await until_scraped(scraped, lambda found: value(found["h0"] or {}, "host_connected") == 0)
        alerts = ["InaprotoDaemonDown", "InaprotoHostWithoutSwitch"]
        assert_fires(promtool, runtime_dir, Told.of(before, during), alerts)


async def test_a_switch_without_memory(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir, memory_kib=0)
        before = await scraped.look()
        comms = await cluster.job("j", 2)
        await add(comms)
        began = await scraped.look()
        await add(comms)
        told = Told.of(before, await scraped.look(), began)
        assert_fires(promtool, runtime_dir, told, ["InaprotoJobNotSummed"])
        await together([comm.aclose for comm in comms])


async def test_a_switch_that_is_killed_again_and_again(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        switch = await scraped_cluster(cluster, scraped, runtime_dir)
        comms = await cluster.job("j", 2)
        await add(comms)
        before = await scraped.look()
        await switch.stop()
        await cluster.start_switch(metrics=scraped.add("switch", runtime_dir))
        await add(comms)
        assert_fires(promtool, runtime_dir, Told.of(before, await scraped.look()), ["InaprotoRingsEndOften"])
        await together([comm.aclose for comm in comms])


async def test_a_wire_that_loses_packets(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(
        runtime_dir, 0, weather="drop=0.05", switch=False, **SMALL | {"transport_timeout": 12}
    ) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        comms = await cluster.job("j", 2)
        before = await scraped.look()
        await add(comms, 10)
        during = await until_scraped(scraped, says("h0", "host_nic_events_total", 1, event="retransmits"))
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoRetransmissions"])
        await together([comm.aclose for comm in comms])


async def test_a_wire_that_damages_packets(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(
        runtime_dir, 0, weather="corrupt=0.05", switch=False, **SMALL | {"transport_timeout": 12}
    ) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        comms = await cluster.job("j", 2)
        before = await scraped.look()
        await add(comms, 10)
        during = await until_scraped(scraped, says("h0", "host_nic_events_total", 1, event="icrc_errors"))
        alerts = ["InaprotoDamagedPackets", "InaprotoPacketsDropped", "InaprotoRetransmissions"]
        assert_fires(promtool, runtime_dir, Told.of(before, during), alerts)
        await together([comm.aclose for comm in comms])


async def test_a_rank_that_never_comes(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        before = await scraped.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: cluster.connect("j", 0, size=2))
            during = await until_scraped(scraped, says("switch", "switch_ranks_missing", 1))
            nursery.cancel_scope.cancel()
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoRanksMissing"])


async def test_a_rank_that_never_calls(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL, stall_ms=10) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        comms = await cluster.job("j", 2)
        before = await scraped.look()
        works = [comms[0].all_reduce(np.ones(COUNT, np.float32))]
        during = await until_scraped(scraped, says("h0", "host_stalled_rings", 1))
        works.append(comms[1].all_reduce(np.ones(COUNT, np.float32)))
        for work in works:
            await work
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoRingStalls"])
        await together([comm.aclose for comm in comms])


async def test_a_leaf_without_its_root(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    names = "spine", "spine1", "leaf0", "leaf1"
    async with running_fabric(two_spines(runtime_dir), start=False) as fabric:
        for name in names:
            await fabric.start(name, metrics=scraped.add(name, runtime_dir))
        await fabric.trunks_up("spine", up=2)
        for leaf in ("leaf0", "leaf1"):
            await fabric.trunks_up(leaf, up=2)
        before = await until_scraped(scraped, says("leaf1", "switch_admitted", 1))
        await fabric.end("leaf0")
        lost = await until_scraped(
            scraped, lambda found: value(found["spine"] or {}, "switch_trunks_up") == 1
        )
        assert_fires(
            promtool, runtime_dir, Told.of(before, lost), ["InaprotoDaemonDown", "InaprotoTrunkDown"]
        )
        await fabric.start("leaf0", metrics=scraped.add("leaf0", runtime_dir))
        await fabric.end("spine")
        alone = await until_scraped(
            scraped, lambda found: value(found["leaf1"] or {}, "switch_admitted") == 0
        )
        alerts = ["InaprotoDaemonDown", "InaprotoSwitchNotAdmitted", "InaprotoTrunkDown"]
        assert_fires(promtool, runtime_dir, Told.of(before, alone), alerts)


async def test_a_certificate_that_runs_out(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with secure_switch(runtime_dir, metrics=scraped.add("switch", runtime_dir)) as secure:
        secure.deployment.issue(Role.SWITCH, "spine", addresses=["127.0.0.1"], days=90)
        before = await until_scraped(scraped, says("switch", "certificate_seconds_left", 80 * 86_400))
        secure.deployment.issue(Role.SWITCH, "spine", addresses=["127.0.0.1"], days=13)
        during = await scraped.look()
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoCertificateExpires"])


async def test_an_interface_that_goes(promtool: Path, runtime_dir: Path) -> None:
    require_namespaces()
    scraped = Scraped()
    with namespaces("cable") as (here,), here.entered():
        join(here, "left", here, "right")
        settings = SwitchSettings.model_validate(
            {"dir": runtime_dir, "port": "packet:left", "metrics": scraped.add("switch", runtime_dir)}
        )
        stop, ready = trio.Event(), trio.Event()
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    listener = load_adapter(settings.adapter).open().listen
                    await run_switch(
                        settings,
                        open_port_listener=listener,
                        stop=stop,
                        links=links_of(settings),
                        announce=lambda line: ready.set(),
                    )

                nursery.start_soon(serve)
                await ready.wait()
                before = await until_scraped(scraped, says("switch", "switch_ports", 1))
                here.ip("link", "del", "left")
                during = await until_scraped(scraped, says("switch", "switch_links_away", 1))
                stop.set()
    assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoLinkAway"])


async def test_sharp_that_does_not_finish(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    tree = tree_named("alerts")
    options = SMALL | {"collective": "memory-collective:alerts", "collective_kib_min": 0}
    async with open_cluster(runtime_dir, 0, switch=False, **options) as cluster:
        await scraped_cluster(cluster, scraped, runtime_dir)
        comms = await cluster.job("j", 2, exact_plan=False)

        async def by(path: str) -> dict[str, Samples | None]:
            while [one.path for one in comms[0].statistics().recent[-1:]] != [path]:
                await add(comms, 1)
            return await scraped.look()

        before = await by("sharp")
        tree.faults = CollectiveFaults(failed=1000)
        during = await by("switch")
        tree.faults = NO_FAULTS
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoSharpFallbacks"])
        await together([comm.aclose for comm in comms])


class Always(Turns):
    """Who has a turn, whatever others have."""

    def __init__(self, turns: dict[str, int], job: str) -> None:
        self._turns, self._job = turns, job

    def bind(self, op_index: OpIndex, now: Instant) -> Binding:
        return Binding(INA, Epoch(self._turns[self._job]))


async def test_turns_that_nobody_agreed_on(promtool: Path, runtime_dir: Path) -> None:
    """One job takes the slots while a message of the other, of which a rank is late, is in them."""
    scraped = Scraped()
    turns = {"first": 1, "second": 2}
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        cluster.turns_of = lambda job: Always(turns, job)
        await scraped_cluster(cluster, scraped, runtime_dir)
        first, second = [await cluster.job(name, 2, path="shared") for name in turns]
        for comms in (first, second):
            await add(comms, 1)
            while comms[0].statistics().recent[-1].path != "switch":
                await add(comms, 1)
        before = await scraped.look()
        turns |= {"first": 3, "second": 4}
        works = [first[0].all_reduce(np.ones(COUNT, np.float32))]
        summed = value(before["switch"] or {}, "accelerator_aggregated_in_total")
        await until_scraped(scraped, says("switch", "accelerator_aggregated_in_total", summed + 1))
        works += [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in second]
        during = await until_scraped(scraped, says("switch", "accelerator_pool_conflicts_total", 1))
        works.append(first[1].all_reduce(np.ones(COUNT, np.float32)))
        for work in works:
            assert (await work)[0] == 2
        well, fault = judged(promtool, runtime_dir, Told.of(before, during))
        # A job whose turn was lost is not summed, and its ring ends, sooner or later than that was scraped.
        assert (well, fault & {"InaprotoPoolConflict"}) == (set(), {"InaprotoPoolConflict"})
        await together([comm.aclose for comm in [*first, *second]])


def test_each_alert_has_a_fault_that_fires_it() -> None:
    files = [Path(__file__), Path(__file__).with_name("test_alerts_controller.py")]
    planted = {name for file in files for name in re.findall(r'"(Inaproto\w+)"', file.read_text())}
    assert planted == set(re.findall(r"- alert: (\w+)", RULES.read_text()))


def test_the_page_has_all_alerts() -> None:
    """With the time after which each fires, and its severity."""
    rule = r"- alert: (\w+)\n(?:(?!- alert).)*?(?:\n +for: (\w+))?\n +labels: { severity: (\w+) }"
    rules = [
        (name, after or "at once", severity)
        for name, after, severity in re.findall(rule, RULES.read_text(), re.DOTALL)
    ]
    page = (DEPLOY.parent / "docs" / "operating.md").read_text()
    assert re.findall(r"^\| `(Inaproto\w+)` \| ([\w ]+) \| (\w+) \|", page, re.MULTILINE) == rules


def test_promtool_takes_the_rules_and_the_example(promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "config", DEPLOY / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = RULES.read_text().count("- alert:")
    assert f"{count} rules found" in done.stdout
