"""Racks on this machine with a controller, which lets jobs share their switches and moves trees."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto_controller.service.job_client import JobClient
from inaproto_hil.rigs.cluster import inaproto_command
from inaproto_hil.rigs.fabric_cluster import FabricCluster, FabricConfig

CONTROLLER: Final = "controller"
REPORT_MS: Final = 500
"""Several within any lease, on a machine that is busy."""
WAIT_S: Final = 600.0
"""For anything that is to happen."""


class SharingCluster(FabricCluster):
    """Racks, the spines above them, and a controller, which can be killed."""

    ready_timeout_s = WAIT_S

    def __init__(
        self,
        *,
        log_dir: Path | None = None,
        spines: int = 1,
        racks: int = 2,
        apart: Collection[tuple[str, str]] = (),
        share_max: int = 4,
        lease_ms: int = 3000,
    ) -> None:
        """``apart``: leaves and spines with no link between them, as far as trees are planned."""
        super().__init__(FabricConfig(spines=spines, racks=racks), log_dir=log_dir)
        self._apart, self._share_max, self._lease_ms = apart, share_max, lease_ms
        self.run_dir = self.directory / CONTROLLER
        agents = ("--controller", str(self.run_dir / AGENTS_SOCKET))
        self.config = FabricConfig(spines=spines, racks=racks, host_options=agents, switch_options=agents)
        self.client = JobClient([str(self.run_dir / JOBS_SOCKET)])

    def _start(self) -> None:
        super()._start()
        (self.directory / "cluster.json").write_text(json.dumps(cluster_file(self.config, self._apart)))
        self.switches.append(self._daemon(CONTROLLER, self._controller_argv()))

    def _controller_argv(self) -> list[str]:
        where = ["--dir", str(self.run_dir), "--cluster", str(self.directory / "cluster.json")]
        options = ["--lease-ms", str(self._lease_ms), "--report-ms", str(REPORT_MS)]
        options += ["--share-max", str(self._share_max)]
        return [inaproto_command(), "controller", *where, *options]

    def kill_controller(self) -> None:
        """Kill it by SIGKILL; another begins on the same store, and ends with the thread that calls this."""
        self._start_switch_again(len(self.config.switches), self._controller_argv())

    def wait_controller(self) -> None:
        """Until that one is ready; in any thread."""
        self._wait_ready([self.switches[len(self.config.switches)]])


def cluster_file(config: FabricConfig, apart: Collection[tuple[str, str]] = ()) -> dict[str, Any]:
    """As docs/cluster-files.md has it. A leaf has slots for a job of each spine."""
    links = [[f"h{host}", config.leaf_of(host)] for host in range(config.hosts)]
    links += [[leaf, spine] for leaf in config.leaves for spine in config.roots if (leaf, spine) not in apart]
    return {
        "hosts": [f"h{host}" for host in range(config.hosts)],
        "switches": [
            {"name": name, "jobs": config.spines if name in config.leaves else 1} for name in config.switches
        ],
        "links": [{"between": link} for link in links],
    }
