"""Hosts with SHARP on this machine, as far as the double of its library goes, and a controller.

Each host is at a leaf of its own, below two spines; the switches are InfiniBand ones that sum (Quantum), so
none of them runs a daemon. What carries words and, without SHARP, sums is one switch of ours beside them.
The double's Aggregation Manager gives a job the tree that the controller has planned for it: at a site it
chooses by itself.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto_controller.service.job_client import JobClient
from inaproto_hil.rigs.cluster import Child, Cluster, inaproto_command
from inaproto_hil.rigs.sharp_double import AM, Double, build

HOSTS: Final = 4
SPINES: Final = ("spine0", "spine1")
WAIT_S: Final = 600.0
"""For anything that is to happen."""
_IDS: Final = {name: number for number, name in enumerate(SPINES, start=100)}
"""Numbers of switches at the double."""


class SharpCluster(Cluster):
    """``double`` is set up when the cluster is entered; ``patience_ms``: for an all-reduce by SHARP."""

    ready_timeout_s = WAIT_S

    def __init__(self, *, log_dir: Path | None = None, patience_ms: int = 3000, kib_min: int = 4) -> None:
        super().__init__(log_dir=log_dir)
        self._library = build()
        self._patience_ms, self._kib_min = patience_ms, kib_min
        self._before = os.environ.get(AM)
        os.environ[AM] = str(self.directory / "am")  # the double reads it here, and so do the daemons
        self.double = Double(self._library)
        self.run_dir = self.directory / "controller"
        self.client = JobClient([str(self.run_dir / JOBS_SOCKET)])

    def _start(self) -> None:
        (self.directory / "cluster.json").write_text(json.dumps(cluster_file()))
        self.double.set(preset=1)
        for host in range(HOSTS):
            self.double.place(device_of(host), [1 + host])
        controller = [inaproto_command(), "controller", "--dir", str(self.run_dir)]
        controller += ["--cluster", str(self.directory / "cluster.json")]
        self.switches.append(self._daemon("controller", [*controller, "--report-ms", "500"]))
        switch = [inaproto_command(), "switch", "--dir", str(self.directory), "--adapter", "shm"]
        self.switches.append(self._daemon("switch", switch))
        for host in range(HOSTS):
            self.hosts.append(self._sharp_host(host))

    def _sharp_host(self, host: int) -> Child:
        options = ["--adapter", "shm", "--controller", str(self.run_dir / AGENTS_SOCKET)]
        library = f"sharp:library={self._library};devices={device_of(host)}"
        options += ["--collective", library, "--collective-kib-min", str(self._kib_min)]
        options += ["--collective-timeout-ms", str(self._patience_ms)]
        return self._host(host, self.directory, *options)

    def restart_host(self, host: int) -> None:
        """SIGKILL it, as a power cut would, and start another, which is not awaited."""
        killed = self.hosts[host]
        killed.process.kill()
        killed.process.wait()
        killed.release()
        self._ready_names.discard(killed.name)
        self.hosts[host] = self._sharp_host(host)

    def submit(self, name: str, hosts: int) -> dict[str, Any]:
        """The job as the controller has it, with its token."""
        return self.client.submit(name, hosts, submission=secrets.token_hex(16))

    def route(self, job: dict[str, Any]) -> None:
        """Have the double's manager give the job the tree that the controller has planned."""
        self.route_by(job["hosts"], job["tree"]["root"])

    def route_by(self, hosts: list[str], root: str) -> None:
        """Have it give jobs of these hosts trees with that root, from their next attachment on."""
        leaves = [1 + int(name.removeprefix("h")) for name in hosts]
        for leaf in leaves:
            self.double.place(device_of(leaf - 1), [*leaves, _IDS[root]])

    def lose(self, root: str) -> None:
        """No job can use that switch any more; empty: all work."""
        self.double.set(lost=_IDS[root] if root else 0)

    def lock(self, root: str) -> None:
        """Somebody else has the lock of that switch; empty: nobody."""
        self.double.set(lock_mode=1 if root else 0, foreign_lock=_IDS[root] if root else 0)

    def close(self) -> None:
        super().close()
        if self._before is None:
            os.environ.pop(AM, None)
        else:
            os.environ[AM] = self._before


def device_of(host: int) -> str:
    """Device of a host at the double."""
    return f"mlx5_{host}:1"


def cluster_file() -> dict[str, Any]:
    """As docs/cluster-files.md has it."""
    leaves = [f"leaf{host}" for host in range(HOSTS)]
    links = [[f"h{host}", leaf] for host, leaf in enumerate(leaves)]
    links += [[leaf, spine] for leaf in leaves for spine in SPINES]
    return {
        "hosts": [f"h{host}" for host in range(HOSTS)],
        "switches": [{"name": name, "generation": "quantum"} for name in (*leaves, *SPINES)],
        "links": [{"between": link} for link in links],
    }
