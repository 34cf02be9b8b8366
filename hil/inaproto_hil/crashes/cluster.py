"""The demo's racks with controllers that can be killed at any instant, each behind a relay.

Beside them stands a *decoy*: a controller like the others, with a store of its own, that nobody is connected
to. To kill that costs the machine the same, and jobs nothing.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from inaproto.daemon.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto_controller.job_client import JobClient
from inaproto_controller.settings import STORE_FILE
from inaproto_hil.cluster import inaproto_command
from inaproto_hil.fabric_cluster import FabricCluster, FabricConfig
from inaproto_hil.sharing_demo import WAIT_S, cluster_file

DECOY: Final = "decoy"
REPORT_MS: Final = 500


class CrashCluster(FabricCluster):
    """``database``: URL of what two controllers share; empty: one, with a file."""

    ready_timeout_s = WAIT_S

    def __init__(self, *, log_dir: Path | None, database: str = "", lease_ms: int) -> None:
        super().__init__(FabricConfig(), log_dir=log_dir)
        self.controllers = ("controller-a", "controller-b") if database else ("controller",)
        self._database, self._lease_ms = database, lease_ms
        ways = [word for name in self.controllers for word in ("--controller", str(self.relay_path(name)))]
        self.config = FabricConfig(host_options=tuple(ways), switch_options=tuple(ways))
        self.client = JobClient([str(self.jobs_path(name)) for name in self.controllers], answer_s=20.0)
        self._lives: dict[str, int] = {}
        self._life = 0
        self._started: dict[str, float] = {}
        self._places: dict[str, int] = {}
        """In ``switches``, which are ended last."""
        self._killed: dict[str, None] = {}
        """And not started again."""
        self._guard = threading.Lock()

    def _start(self) -> None:
        super()._start()
        (self.directory / "cluster.json").write_text(json.dumps(cluster_file(self.config)))
        for name in (*self.controllers, DECOY):
            self._places[name] = len(self.switches)
            self.switches.append(self._daemon(name, self._argv(name)))
            self._born(name)

    def _argv(self, name: str) -> list[str]:
        where = ["--dir", str(self.directory / name), "--cluster", str(self.directory / "cluster.json")]
        if self._database and name != DECOY:
            where += ["--store", self._database]
        times = ["--lease-ms", str(self._lease_ms), "--report-ms", str(REPORT_MS)]
        return [inaproto_command(), "controller", *where, *times]

    def _born(self, name: str) -> None:
        self._life += 1
        self._lives[name] = self._life
        self._started[name] = time.monotonic()

    def relay_path(self, name: str) -> Path:
        return self.directory / f"{name}.sock"

    def agents_path(self, name: str) -> Path:
        return self.directory / name / AGENTS_SOCKET

    def jobs_path(self, name: str) -> Path:
        return self.directory / name / JOBS_SOCKET

    def store_path(self, name: str) -> Path:
        """Of one with a file."""
        return self.directory / name / STORE_FILE

    # --- lives

    def life(self, name: str) -> int:
        """Of the process that runs now, or was killed last: ascending over all controllers."""
        return self._lives[name]

    def age_s(self, name: str) -> float:
        return time.monotonic() - self._started[name]

    def is_up(self, name: str) -> bool:
        """It has said that it is ready."""
        return self.is_ready(self.switches[self._places[name]])

    def kill(self, name: str, life: int) -> bool:
        """By SIGKILL, that life and no other; from any thread. It stays a zombie until it is started again.

        Returns whether that life had not been killed before.
        """
        with self._guard:
            if self._lives[name] != life or name in self._killed:
                return False
            os.kill(self.switches[self._places[name]].pid, signal.SIGKILL)
            self._killed[name] = None
            return True

    def start_again(self, name: str) -> None:
        """In the thread that may end last, for children end with their thread. It is not awaited."""
        with self._guard:
            self._start_switch_again(self._places[name], self._argv(name))
            self._killed.pop(name, None)
            self._born(name)
