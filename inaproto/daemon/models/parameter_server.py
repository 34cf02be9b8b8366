"""The parameter server: it holds one shard of every model that names it, durably.

``inaproto server --models models.toml --name ps0``: each shard lies in ``STORE/MODEL-SHARD``. A server that
was killed goes on where its disk is; its children wait for it, and lose nothing.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.core.models.shard import ShardRoot
from inaproto.daemon.models.channels.queue_pairs import QueuePairs
from inaproto.daemon.models.core_configs import root_config
from inaproto.daemon.models.host_models import wall_clock_life
from inaproto.daemon.models.links import Admit, Links, admit_all
from inaproto.daemon.models.listening import credentials_for
from inaproto.daemon.models.shard_records import state_of
from inaproto.daemon.models.shells import RootShell
from inaproto.daemon.models.status import root_status
from inaproto.daemon.models.store.durable_log import LOG_BYTES_MIN, DurableLog
from inaproto.daemon.models.store.shard_store import stored
from inaproto.daemon.net.accepting import take_each
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.tls import Credentials
from inaproto.daemon.net.unix_sockets import listen_unix, make_run_directory
from inaproto.daemon.settings.models_file import Models, Shard
from inaproto.daemon.shell import current_instant
from inaproto.errors import ConfigError, DecodeError, JobError, LocalMisuse
from inaproto.ports import ByteStream
from inaproto.wire.control_messages import (
    Message,
    Status,
    StatusReply,
    encode_message,
    encode_with_arrays,
    error_message,
)

_VERSION: Final = version("inaproto")
log = logging.getLogger("inaproto.server")


class ParameterServer:
    """Opens its shards when it is made: that may raise ``ConfigError``. :meth:`run` it, then close it."""

    def __init__(
        self,
        models: Models,
        name: str,
        store: Path,
        *,
        credentials: Credentials | None = None,
        queue_pairs: QueuePairs | None = None,
        admit: Admit = admit_all,
        log_bytes_min: int = LOG_BYTES_MIN,
    ) -> None:
        self.name = name
        self._links = Links(
            models, name, wall_clock_life(), credentials=credentials, queue_pairs=queue_pairs, admit=admit
        )
        self._shells: dict[Shard, RootShell] = {}
        self._began = trio.current_time()
        with ExitStack() as stack:
            for shard in models.shards_of(name):
                directory = store / f"{shard.model.name}-{shard.number}"
                durable = DurableLog(directory, log_bytes_min=log_bytes_min)
                stack.callback(durable.close)
                self._shells[shard] = RootShell(
                    shard, self._links, _restored(shard, durable, directory), durable
                )
            self._open = stack.pop_all()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when hosts can connect. Raises ``ConfigError``, ``FabricError``."""
        async with trio.open_nursery() as nursery:
            for shell in self._shells.values():
                nursery.start_soon(shell.write)
            await nursery.start(self._links.run)
            for shell in self._shells.values():
                nursery.start_soon(shell.keep_time)
                shell.start()
            task_status.started()

    def close(self) -> None:
        self._open.close()

    def status(self) -> dict[str, Any]:
        return {
            "role": "server",
            "name": self.name,
            "version": _VERSION,
            "pid": os.getpid(),
            "uptime_s": trio.current_time() - self._began,
            "refused": dict(self._links.refused),
            "link": None if self._links.paces is None else self._links.paces.status(),
            "nic": self._links.nic_status(),
            "shards": [
                root_status(shard, shell, self._links.status(shard)) for shard, shell in self._shells.items()
            ],
        }


def _restored(shard: Shard, durable: DurableLog, directory: Path) -> ShardRoot:
    """The root as the disk has it. Raises ``ConfigError`` for a disk that has something else."""
    found = durable.found
    there = stored(found, shard, directory)
    root = ShardRoot(root_config(shard), there.snapshot, there.changes, current_instant())
    if there.news:
        log.warning("%s: store %s: %s", shard, directory, there.news)
    if there.snapshot is None or there.news:  # so that nobody takes the directory for that of another shard
        durable.snapshot(encode_with_arrays(state_of(root.snapshot(), shard)))
    elif there.changes or found.torn_bytes:
        log.info(
            "%s: %d changes after snapshot %d, %d torn bytes",
            shard,
            len(there.changes),
            durable.number,
            found.torn_bytes,
        )
    return root


async def run_server(
    models: Models,
    name: str,
    store: Path,
    status_path: Path,
    *,
    tls: Path | None = None,
    metrics: str = "",
    queue_pairs: QueuePairs | None = None,
    admit: Admit = admit_all,
    log_bytes_min: int = LOG_BYTES_MIN,
    task_status: trio.TaskStatus[ParameterServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Raises ``ConfigError``, and ``FabricError`` when the disk fails.

    ``status_path``: socket for ``inaproto status``. ``log_bytes_min``: of a log that is cut by a snapshot.
    """
    make_run_directory(status_path.parent, "server")
    listening = await listen_unix(status_path, "server: its socket")
    try:
        if name not in models.servers:
            raise ConfigError(f"models: {name!r} is none of the file's servers: {', '.join(models.servers)}")
        models.require_memory(name)
        credentials = credentials_for(models, name, tls, status_path.parent)
        server = ParameterServer(
            models,
            name,
            store,
            credentials=credentials,
            queue_pairs=queue_pairs,
            admit=admit,
            log_bytes_min=log_bytes_min,
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                nursery.start_soon(
                    take_each, listening, lambda one: nursery.start_soon(_tell, one, server), log, "question"
                )
                if metrics:
                    from inaproto.daemon.net.metrics_server import serve_metrics
                    from inaproto.daemon.observe.model_metrics import server_metrics

                    await nursery.start(serve_metrics, metrics, server_metrics, server.status)
                task_status.started(server)
        finally:
            server.close()
    finally:
        listening.close()


async def _tell(connection: ByteStream, server: ParameterServer) -> None:
    """Answer one who asks for the status."""
    stream = ControlStream(connection)
    try:
        while True:
            message = await stream.receive()
            if isinstance(message, Status):
                await stream.send(_reply(message.id, server))
            else:
                text = f"a parameter server does not take messages of type {message.TYPE!r} here"
                await stream.send(error_message(JobError(text), of=message.id))
    except (EndOfChannel, DecodeError):
        pass
    finally:
        stream.close()


def _reply(id: int, server: ParameterServer) -> Message:
    reply = StatusReply(id=id, body=server.status())
    try:
        encode_message(reply)
    except LocalMisuse as error:  # that of hundreds of shards of hundreds of workers is too long
        return error_message(JobError(f"the status does not fit in a message: {error}"), of=id)
    return reply
