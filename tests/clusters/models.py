"""Hosts and parameter servers of models in this process, over UNIX sockets; each can be ended by itself."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

import inaproto
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.models.parameter_server import ParameterServer, run_server
from inaproto.daemon.models.store.durable_log import LOG_BYTES_MIN
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.settings.models_file import Models, load_models
from inaproto.ports import Nic
from inaproto_hil.rigs.models_cluster import free_ports

WAIT_S = 600.0


async def no_nic(*args: Any, **kwargs: Any) -> Nic:
    raise AssertionError("there is no switch, so nobody opens a NIC")


def models_text(hosts: int, servers: int, *, tls: bool = False, link_mbit: int = 0, **fields: Any) -> str:
    """A models file of one model, ``m``; ``fields`` as in TOML. ``tls``: on loopback, else UNIX sockets."""
    lines = []
    ports = iter(free_ports(hosts + servers) if tls else ())
    for table, prefix, count in (("hosts", "h", hosts), ("servers", "ps", servers)):
        for number in range(count):
            address = f"tls://127.0.0.1:{next(ports)}" if tls else f"unix:{prefix}{number}.tree"
            lines += [f"[[{table}]]", f'name = "{prefix}{number}"', f'address = "{address}"']
            lines += [f"link_mbit = {link_mbit}"] if link_mbit else []
    lines += ["[[models]]", 'name = "m"']
    lines += [f"{name} = {_toml(value)}" for name, value in fields.items()]
    return "\n".join(lines) + "\n"


def models_document(hosts: int, servers: int, **fields: Any) -> dict[str, Any]:
    """The same as ``tomllib`` gives it."""
    return tomllib.loads(models_text(hosts, servers, **fields))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list | tuple) else str(value)


class ModelsCluster:
    def __init__(self, directory: Path, text: str, nursery: trio.Nursery, log_bytes_min: int) -> None:
        self.directory = directory
        self.file = directory / "models.toml"
        self.file.write_text(text)
        self.models: Models = load_models(self.file)
        self._nursery = nursery
        self._log_bytes_min = log_bytes_min
        self._scopes: dict[str, tuple[trio.CancelScope, trio.Event]] = {}
        self.hosts: dict[str, HostDaemon] = {}
        self.servers: dict[str, ParameterServer] = {}

    async def start_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in (*self.models.servers, *self.models.hosts):
                nursery.start_soon(self.start, name)

    async def start(self, name: str) -> None:
        await self._nursery.start(self._run, name)

    async def end(self, name: str) -> None:
        """At once: it says nothing to anybody."""
        scope, ended = self._scopes[name]
        scope.cancel()
        await ended.wait()

    async def _run(self, name: str, task_status: trio.TaskStatus[None]) -> None:
        scope, ended = trio.CancelScope(), trio.Event()
        self._scopes[name] = scope, ended
        with scope:
            async with trio.open_nursery() as nursery:
                if name in self.models.servers:
                    store = self.directory / f"{name}.store"
                    path = self.directory / f"{name}.sock"

                    async def serve(task_status: trio.TaskStatus[ParameterServer]) -> None:
                        await run_server(
                            self.models,
                            name,
                            store,
                            path,
                            log_bytes_min=self._log_bytes_min,
                            task_status=task_status,
                        )

                    self.servers[name] = await nursery.start(serve)
                else:
                    settings = HostSettings(name=name, ip="10.0.0.1", dir=self.directory, models=self.file)

                    async def host(task_status: trio.TaskStatus[HostDaemon]) -> None:
                        await run_host(settings, open_nic=no_nic, task_status=task_status)

                    self.hosts[name] = await nursery.start(host)
                task_status.started()
                await trio.sleep_forever()
        ended.set()

    def socket(self, host: str) -> Path:
        return self.directory / f"{host}.sock"

    async def worker(self, host: str, **options: Any) -> inaproto.Model:
        return await inaproto.connect_model("m", socket=self.socket(host), timeout=WAIT_S, **options)

    def status(self, host: str) -> Mapping[str, Any]:
        (model,) = self.hosts[host].status()["models"]
        return model  # type: ignore[no-any-return]


@asynccontextmanager
async def models_cluster(
    directory: Path, text: str, *, log_bytes_min: int = LOG_BYTES_MIN
) -> AsyncIterator[ModelsCluster]:
    """All started."""
    with trio.fail_after(4 * WAIT_S):
        async with trio.open_nursery() as nursery:
            cluster = ModelsCluster(directory, text, nursery, log_bytes_min)
            await cluster.start_all()
            yield cluster
            nursery.cancel_scope.cancel()
