"""The worker processes of ``inaproto bench allreduce``, one for each rank."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections import deque
from typing import Any

from inaproto_hil.bench.allreduce.ring_traffic import sockets
from inaproto_hil.bench.allreduce.worker import WorkerPlan
from inaproto_hil.rigs.cluster import Child, LocalCluster

CHECK_TIMEOUT_S = 600.0
"""What a rank may take beside its operation: start-up, making data, checking it."""


class Ranks:
    """The worker processes, stepped from operation to operation."""

    def __init__(self, cluster: LocalCluster, plan: WorkerPlan, rings: int) -> None:
        self._cluster = cluster
        self._timeout_s = plan.timeout_s + CHECK_TIMEOUT_S
        self._lines: queue.SimpleQueue[tuple[Child, str | None]] = queue.SimpleQueue()
        self._messages: list[deque[dict[str, Any]]] = [deque() for _ in range(plan.ranks)]
        """Ranks run ahead of each other: one may be at the next row when another reports this one."""
        module = [sys.executable, "-m", "inaproto_hil.bench.allreduce.worker"]
        self._ranks = {
            cluster.start_worker(
                f"rank{rank}",
                [*module, str(rank), os.pathsep.join(sockets(cluster, rank, rings)), plan.encode()],
                sink=lambda child, line: self._lines.put((child, line)),
            ): rank
            for rank in range(plan.ranks)
        }

    def collect(self, wanted: str, what: str) -> list[dict[str, Any]]:
        """The next message of each rank, in rank order; it must have the field ``wanted``."""
        deadline = time.monotonic() + self._timeout_s
        while not all(self._messages):
            try:
                child, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                missing = [rank for rank, messages in enumerate(self._messages) if not messages]
                message = f"ranks {missing} did not reach {what} within {self._timeout_s:.0f} s"
                raise self._cluster.failure(message) from None
            if line is None:
                status = child.process.wait()
                if status == 0 and self._messages[self._ranks[child]]:
                    continue  # it said all it had to say
                raise self._cluster.failure(f"{child.name} ended with status {status} before {what}")
            if line.startswith("{"):
                self._messages[self._ranks[child]].append(json.loads(line))
            else:
                child.log(line)
        found = [messages.popleft() for messages in self._messages]
        if not all(wanted in message for message in found):
            raise self._cluster.failure(f"the ranks are out of step at {what}: {found}")
        return found

    def go(self) -> None:
        for child in self._ranks:
            child.send_line("go")
