"""The demo's racks with controllers that can be killed at any instant, each behind a relay.

Beside them may stand a *decoy*: a controller like the others, with a store of its own, that nobody is
connected to. To kill that costs the machine the same, and jobs nothing. Controllers are forked by a program
that has imported them (:mod:`inaproto_hil.crashes.zygote`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from math import inf
from pathlib import Path
from typing import Final

from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto_controller.service.job_client import JobClient
from inaproto_controller.service.settings import STORE_FILE
from inaproto_hil.rigs.cluster import Child
from inaproto_hil.rigs.fabric_cluster import FabricCluster, FabricConfig
from inaproto_hil.rigs.sharing_cluster import WAIT_S, cluster_file

DECOY: Final = "decoy"
REPORT_MS: Final = 500


class CrashCluster(FabricCluster):
    """``database``: URL of what two controllers share; empty: one, with a file. ``decoy``: there is one."""

    ready_timeout_s = WAIT_S

    def __init__(
        self, *, log_dir: Path | None, database: str = "", lease_ms: int, decoy: bool = True
    ) -> None:
        super().__init__(FabricConfig(), log_dir=log_dir)
        self.controllers = ("controller-a", "controller-b") if database else ("controller",)
        self._database, self._lease_ms, self._has_decoy = database, lease_ms, decoy
        ways = [word for name in self.controllers for word in ("--controller", str(self.relay_path(name)))]
        self.config = FabricConfig(host_options=tuple(ways), switch_options=tuple(ways))
        self.client = JobClient([str(self.jobs_path(name)) for name in self.controllers], answer_s=20.0)
        self._lives: dict[str, int] = {}
        self._life = 0
        self._pids: dict[str, int] = {}
        self._killed: dict[str, None] = {}
        """Killed, and not started again."""
        self._ended: dict[str, int] = {}
        """Controllers that ended by themselves, with the life in which they did."""
        self._started: dict[int, float] = {}
        self.start_s = inf
        """Time that a controller takes until it is ready, the least so far."""
        self._guard = threading.Lock()

    def _start(self) -> None:
        super()._start()
        (self.directory / "cluster.json").write_text(json.dumps(cluster_file(self.config)))
        self._zygote = self._daemon("zygote", [sys.executable, "-m", "inaproto_hil.crashes.zygote"])
        self.switches.append(self._zygote)  # which are ended last
        for name in (*self.controllers, *([DECOY] if self._has_decoy else [])):
            self._log_path(name).unlink(missing_ok=True)
            self.start_again(name)

    def _argv(self, name: str) -> list[str]:
        where = ["--dir", str(self.directory / name), "--cluster", str(self.directory / "cluster.json")]
        if self._database and name != DECOY:
            where += ["--store", self._database]
        times = ["--lease-ms", str(self._lease_ms), "--report-ms", str(REPORT_MS)]
        return ["controller", *where, *times]

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
        """Life of the process that runs now, or was killed last: ascending over all controllers."""
        return self._lives[name]

    def kill(self, name: str, life: int) -> bool:
        """Kill that life and no other by SIGKILL; from any thread. Its process id is nobody else's meanwhile.

        Returns whether that life had not been killed before.
        """
        with self._guard:
            if self._lives[name] != life or name in self._killed:
                return False
            self._killed[name] = None
            if name in self._pids:
                os.kill(self._pids[name], signal.SIGKILL)
            return True

    def start_again(self, name: str) -> None:
        """After it was killed. It is not awaited."""
        life = self.born(name)
        self._zygote.send_line(json.dumps([name, life, str(self._log_path(name)), self._argv(name)]))

    def born(self, name: str) -> int:
        """The next life of it, which begins."""
        with self._guard:
            self._pids.pop(name, None)
            self._killed.pop(name, None)
            self._life += 1
            life = self._lives[name] = self._life
            self._started[life] = time.monotonic()
            return life

    def _daemon_line(self, child: Child, line: str | None) -> None:
        """In a thread."""
        super()._daemon_line(child, line)
        if child.name != "zygote" or line is None:
            return
        match line.split():
            case ["started", name, life, pid]:
                self.forked(name, int(life), int(pid))
            case ["said", _, life, "ready", *_]:
                self.start_s = min(self.start_s, time.monotonic() - self._started[int(life)])
            case ["ended", name, life]:
                self._ended[name] = int(life)
            case _:
                pass

    def forked(self, name: str, life: int, pid: int) -> None:
        """Note that the life is there; its process id is nobody else's until the next one is forked."""
        with self._guard:
            is_dead = self._lives[name] != life or name in self._killed
            if is_dead:  # it was killed before it was there
                os.kill(pid, signal.SIGKILL)
            if self._lives[name] == life:
                self._pids[name] = pid

    def check(self) -> None:
        super().check()
        for name, life in self._ended.items():
            text = self._log_path(name).read_text(errors="replace")[-4000:]
            raise self.failure(f"{name} ended by itself in life {life}; the end of its log:\n{text}")
