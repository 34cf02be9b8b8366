"""Racks with a controller, each of whose daemons is of this release or of the one before, and is replaced."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from inaproto_hil.rigs.cluster import Child, stop_children
from inaproto_hil.rigs.release import Release
from inaproto_hil.rigs.sharing_cluster import CONTROLLER, SharingCluster


class UpgradeCluster(SharingCluster):
    """``others`` are the daemons, by name, that are of ``other``: all at the beginning, if it ``begins``."""

    def __init__(self, other: Release, *, begins: bool, log_dir: Path | None = None) -> None:
        super().__init__(log_dir=log_dir)
        self.other = other
        names = (*self.config.switches, CONTROLLER, *(f"h{host}" for host in range(self.config.hosts)))
        self.others = set(names) if begins else set()
        self._argv: dict[str, list[str]] = {}

    def _daemon(self, name: str, argv: Sequence[str], *, append: bool = False) -> Child:
        self._argv[name] = list(argv)
        if name not in self.others:
            return super()._daemon(name, argv, append=append)
        self._ready[name] = threading.Event()
        log_path = self._logs / f"{name}.log" if append else self._new_log(name)
        command = [*self.other.command, *argv[1:]]
        return Child(
            name, command, log_path=log_path, sink=self._daemon_line, environment=self.other.environment
        )

    def replace(self, name: str) -> None:
        """Stop it in order, as systemd does, and start it in the other release; it is not awaited."""
        self._again(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """End it by SIGKILL, and start it again as it was; it is not awaited."""
        self._again(name, signal.SIGKILL)

    def _again(self, name: str, by: signal.Signals) -> None:
        kind = next(kind for kind in (self.switches, self.hosts) if name in (child.name for child in kind))
        at = next(index for index, child in enumerate(kind) if child.name == name)
        ended = kind[at]
        if by is signal.SIGKILL:
            ended.process.kill()
            ended.process.wait()
            ended.release()
        else:
            stop_children([ended])
            self.others ^= {name}
        self._ready_names.discard(name)
        kind[at] = self._daemon(name, self._argv[name], append=True)
