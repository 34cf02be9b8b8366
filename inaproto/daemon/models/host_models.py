"""The models of one host: a node in the tree of every shard, and the seats of its workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.core.models.events import Ending
from inaproto.core.models.node import ShardNode
from inaproto.daemon.models.channels.queue_pairs import QueuePairs
from inaproto.daemon.models.core_configs import node_config
from inaproto.daemon.models.late_waits import LateWaits
from inaproto.daemon.models.links import Admit, Links, admit_all
from inaproto.daemon.models.listening import credentials_for
from inaproto.daemon.models.seat import ModelSeat
from inaproto.daemon.models.shells import NodeShell
from inaproto.daemon.models.status import node_status
from inaproto.daemon.net.tls import Credentials
from inaproto.daemon.settings.models_file import Models, Shard, load_models
from inaproto.daemon.shell import current_instant
from inaproto.errors import ConfigError
from inaproto.wire.messages.clocks import FOREVER

log = logging.getLogger("inaproto.overlay")

ENDING_S: Final = 5.0
"""For which an orderly end waits for the servers. Longer than a child of a node that is gone takes to find
another parent: hosts are often ended together."""


def wall_clock_life() -> int:
    """Life of a process that starts now: later ones have a higher number."""
    return time.time_ns()


class HostModels:
    """Made from the models file; :meth:`run` it."""

    def __init__(
        self,
        models: Models,
        host: str,
        *,
        credentials: Credentials | None = None,
        queue_pairs: QueuePairs | None = None,
        life: Callable[[], int] = wall_clock_life,
        admit: Admit = admit_all,
    ) -> None:
        self.models = models
        self._links = Links(
            models, host, life(), credentials=credentials, queue_pairs=queue_pairs, admit=admit
        )
        self.seats: dict[str, ModelSeat] = {}
        self._shells: dict[Shard, NodeShell] = {}
        for model in models.models:
            worker = model.worker(host)
            if worker is None:
                continue
            seat = self.seats[model.name] = ModelSeat(model, worker)
            for shard in model.shards:
                core = ShardNode(node_config(shard, host), current_instant())
                shell = self._shells[shard] = NodeShell(shard, self._links, core, seat)
                seat.add(shard, shell)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when neighbours can connect. Raises ``ConfigError``."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._links.run)
            for shell in self._shells.values():
                nursery.start_soon(shell.keep_time)
                shell.start()
            for seat in self.seats.values():
                nursery.start_soon(seat.keep_saving)
            nursery.start_soon(LateWaits(self._links, self.seats).run)
            task_status.started()

    async def end(self, within_s: float = ENDING_S) -> None:
        """In order, while it still runs: what the workers have finished goes up, and is waited for until the
        servers have it on their disks. What they have not in time is said in the log."""
        owed = [
            (seat, shard, clock)
            for seat in self.seats.values()
            for shard, clock in seat.finished.items()
            if self._shells[shard].merged_of_worker() < clock
        ]
        for shell in self._shells.values():
            shell.post(Ending())
        if not owed:
            return
        log.info("waiting up to %g s for servers to have what workers have finished", within_s)
        with trio.move_on_after(within_s):
            for _, shard, clock in owed:
                await self._shells[shard].merged(clock)
        for seat, shard, clock in owed:
            has = self._shells[shard].merged_of_worker()
            if has < clock:
                text = "%s: server %s has not said that it has %s of worker %d on its disk: to be made again"
                log.warning(text, shard, shard.server, _updates(has + 1, clock), seat.worker)
            else:
                log.info("%s: all that worker %d has finished is on the server's disk", shard, seat.worker)

    def link_status(self) -> dict[str, Any] | None:
        """Status of its access link, where the models file says how fast that is."""
        return None if self._links.paces is None else self._links.paces.status()

    def nic_status(self) -> dict[str, Any] | None:
        """Status of the NIC for words and arrays, where one was named."""
        return self._links.nic_status()

    def status(self) -> list[dict[str, Any]]:
        """For ``inaproto status``: of each model."""
        return [
            {
                "model": name,
                "dtype": seat.model.settings.dtype,
                "elements": seat.model.elements,
                "staleness": seat.model.settings.staleness,
                "worker": seat.status(),
                "shards": [
                    node_status(shard, shell, self._links.status(shard))
                    for shard, shell in self._shells.items()
                    if shard.model is seat.model
                ],
            }
            for name, seat in self.seats.items()
        ]


def _updates(first: int, last: int) -> str:
    """``last``: ``FOREVER`` for that of a worker that leaves."""
    if last >= FOREVER:
        return f"what was finished after update {first - 1}, its leave with it,"
    return f"update {first}" if first == last else f"updates {first} to {last}"


def host_models(
    file: Path, host: str, tls: Path | None, directory: Path, queue_pairs: QueuePairs | None = None
) -> HostModels:
    """``tls``: directory of the certificate that the other processes are shown; ``directory``: where one for
    loopback is made. Raises ``ConfigError``."""
    models = load_models(file)
    if host not in models.hosts:
        raise ConfigError(f"models: {host!r} is none of the file's hosts: {', '.join(models.hosts)}")
    models.require_memory(host)
    credentials = credentials_for(models, host, tls, directory)
    return HostModels(models, host, credentials=credentials, queue_pairs=queue_pairs)
