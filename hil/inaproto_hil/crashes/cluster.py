"""The demo's racks with controllers that can be killed at any instant, each behind a relay.

Beside them may stand a *decoy*: a controller like the others, with a store of its own, that nobody is
connected to. To kill that costs the machine the same, and jobs nothing.
"""

from __future__ import annotations

import json
import threading
import time
from math import inf
from pathlib import Path
from typing import Any, Final

from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto_controller.service.job_client import JobClient
from inaproto_controller.service.settings import STORE_FILE
from inaproto_hil.rigs.cluster import Child, inaproto_command, stop_children
from inaproto_hil.rigs.fabric_cluster import FabricCluster, FabricConfig
from inaproto_hil.rigs.sharing_cluster import WAIT_S, cluster_file

DECOY: Final = "decoy"
REPORT_MS: Final = 500
CROWD_RACK: Final = 32


class CrashCluster(FabricCluster):
    """``database``: URL of what two controllers share; empty: one, with a file. ``decoy``: there is one.
    ``crowd``: hosts of the cluster file beside those that have daemons, in racks of their own."""

    ready_timeout_s = WAIT_S

    def __init__(
        self, *, log_dir: Path | None, database: str = "", lease_ms: int, decoy: bool = True, crowd: int = 0
    ) -> None:
        super().__init__(FabricConfig(), log_dir=log_dir)
        self.controllers = ("controller-a", "controller-b") if database else ("controller",)
        self._database, self._lease_ms, self._has_decoy = database, lease_ms, decoy
        self.crowd = [f"x{number}" for number in range(crowd)]
        self.crowd_switches = [f"xleaf{number}" for number in range(-(-crowd // CROWD_RACK))]
        ways = [word for name in self.controllers for word in ("--controller", str(self.relay_path(name)))]
        self.config = FabricConfig(host_options=tuple(ways), switch_options=tuple(ways))
        self.client = JobClient([str(self.jobs_path(name)) for name in self.controllers], answer_s=20.0)
        self._lives: dict[str, int] = {}
        self._life = 0
        self._processes: dict[str, Child] = {}
        """The last one of each name."""
        self._killed: set[str] = set()
        """Names of those that were killed, and not started again."""
        self._started: dict[Child, float] = {}
        self.start_s = inf
        """Time that a controller takes until it is ready, the least so far."""
        self._guard = threading.Lock()

    def _start(self) -> None:
        super()._start()
        (self.directory / "cluster.json").write_text(json.dumps(self._cluster_file()))
        for name in (*self.controllers, *([DECOY] if self._has_decoy else [])):
            self._log_path(name).unlink(missing_ok=True)
            self.start_again(name)

    def _cluster_file(self) -> dict[str, Any]:
        found = cluster_file(self.config)
        links = [[host, f"xleaf{at // CROWD_RACK}"] for at, host in enumerate(self.crowd)]
        links += [[leaf, root] for leaf in self.crowd_switches for root in self.config.roots]
        found["hosts"] += self.crowd
        found["switches"] += [{"name": name, "jobs": CROWD_RACK} for name in self.crowd_switches]
        found["links"] += [{"between": link} for link in links]
        return found

    def _argv(self, name: str) -> list[str]:
        where = ["--dir", str(self.directory / name), "--cluster", str(self.directory / "cluster.json")]
        if self._database and name != DECOY:
            where += ["--store", self._database]
        times = ["--lease-ms", str(self._lease_ms), "--report-ms", str(REPORT_MS)]
        return [inaproto_command(), "controller", *where, *times]

    def _log_path(self, name: str) -> Path:
        return self._logs.absolute() / f"{name}.log"

    def relay_path(self, name: str) -> Path:
        return self.directory / f"{name}.sock"

    def agents_path(self, name: str) -> Path:
        return self.directory / name / AGENTS_SOCKET

    def jobs_path(self, name: str) -> Path:
        return self.directory / name / JOBS_SOCKET

    def store_path(self, name: str) -> Path:
        """Path of a store that is a file."""
        return self.directory / name / STORE_FILE

    # --- lives

    def life(self, name: str) -> int:
        """Number of the process that runs now, or was killed last: ascending over all controllers."""
        return self._lives[name]

    def kill(self, name: str, life: int) -> bool:
        """Kill that life by SIGKILL, and no other; from any thread.

        Returns whether that life had not been killed before.
        """
        with self._guard:
            if self._lives[name] != life or name in self._killed:
                return False
            self._killed.add(name)
            self._processes[name].process.kill()
            return True

    def start_again(self, name: str) -> None:
        """Start it, for the first time or after it was killed. It is not awaited."""
        before = self._processes.get(name)
        if before is not None:
            before.process.wait()
            before.release()
        with self._guard:
            self._life += 1
            self._lives[name] = self._life
            self._killed.discard(name)
            began = time.monotonic()
            child = self._processes[name] = self._daemon(name, self._argv(name), append=True)
            self._started[child] = began

    def _daemon_line(self, child: Child, line: str | None) -> None:
        super()._daemon_line(child, line)
        if line is not None and line.startswith("ready") and child.name in self._lives:
            with self._guard:
                self.start_s = min(self.start_s, time.monotonic() - self._started[child])

    def check(self) -> None:
        super().check()
        for name, child in self._processes.items():
            if child.exit_status is not None and name not in self._killed:
                life, log = self._lives[name], child.tail(60)
                raise self.failure(f"{name} ended by itself in life {life}; the end of its log:\n{log}")

    def close(self) -> None:
        stop_children(list(self._processes.values()))
        super().close()
