"""A controller, or a pair, of a cluster whose machines are a swarm of agents in the bench's own process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto_controller.service.job_client import JobClient
from inaproto_hil.rigs.cluster import Cluster, inaproto_command

RACK: Final = 32
"""Hosts of a leaf, at most: of few there are two leaves, too, so that a tree has a spine as its root."""
SPINES: Final = 4


def names(hosts: int) -> tuple[list[str], list[str]]:
    """Hosts and switches; the root of the fabric is the first of these."""
    racks = -(-hosts // in_rack(hosts))
    return (
        [f"h{number}" for number in range(hosts)],
        [*(f"spine{number}" for number in range(SPINES)), *(f"leaf{number}" for number in range(racks))],
    )


def in_rack(hosts: int) -> int:
    return max(1, min(RACK, hosts // 2))


def cluster_file(hosts: int, jobs_per_host: float) -> dict[str, Any]:
    """Racks of 32 under spines that are all alike: each leaf has slots for all jobs of its rack."""
    machines, switches = names(hosts)
    leaves = [name for name in switches if name.startswith("leaf")]
    links = [[host, leaves[number // in_rack(hosts)]] for number, host in enumerate(machines)]
    links += [[leaf, f"spine{spine}"] for leaf in leaves for spine in range(SPINES)]
    slots = max(2, round(RACK * jobs_per_host))
    return {
        "hosts": machines,
        "switches": [{"name": name, "jobs": slots if name in leaves else 4} for name in switches],
        "links": [{"between": link} for link in links],
    }


class ControllerCluster(Cluster):
    """``database``: URL of what two controllers share; empty: one controller, with a file."""

    def __init__(self, hosts: int, jobs: int, *, database: str = "", report_ms: int = 2000) -> None:
        super().__init__(log_dir=None)
        self.names = ("controller-a", "controller-b") if database else ("controller",)
        self._database, self._report_ms = database, report_ms
        (self.directory / "cluster.json").write_text(json.dumps(cluster_file(hosts, jobs / hosts)))
        self.client = JobClient([str(self.jobs_path(name)) for name in self.names])

    def agents_path(self, name: str) -> Path:
        return self.directory / name / AGENTS_SOCKET

    def jobs_path(self, name: str) -> Path:
        return self.directory / name / JOBS_SOCKET

    def _start(self) -> None:
        for name in self.names:
            self.switches.append(self._daemon(name, self._argv(name)))

    def _argv(self, name: str) -> list[str]:
        where = ["--dir", str(self.directory / name), "--cluster", str(self.directory / "cluster.json")]
        store = ["--store", self._database] if self._database else []
        return [inaproto_command(), "controller", *where, *store, "--report-ms", str(self._report_ms)]

    def kill(self, index: int) -> None:
        """Kill that controller by SIGKILL, and start it again; it is not awaited."""
        self._start_switch_again(index, self._argv(self.names[index]))

    def wait_until_ready(self) -> None:
        self._wait_ready(self.switches)

    def leader(self) -> int:
        """Index of the one that leads. Raises ``ClusterError`` where none does within a minute."""
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            for index, name in enumerate(self.names):
                if JobClient([str(self.jobs_path(name))]).status()["leads"]:
                    return index
            time.sleep(0.1)
        raise self.failure("no controller leads")

    def cpu_s(self) -> float:
        return sum(one.cpu_s() for one in self.switches)

    def rss_bytes(self) -> int:
        """The most that one of the controllers has had in memory."""
        return max(_peak_rss(one.pid) for one in self.switches)


def _peak_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
