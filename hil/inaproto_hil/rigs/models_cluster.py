"""Host daemons and parameter servers of a model on this machine, over loopback; any of them can be killed."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inaproto.daemon.net.names import server_socket
from inaproto.daemon.settings.models_file import Models, load_models
from inaproto_hil.rigs.cluster import Child, Cluster, inaproto_command, stop_children


class ModelsCluster(Cluster):
    """``models``: the tables ``[[models]]`` of the models file, as TOML.

    ``nics``: further options of each process, by its name. ``weather``: of a switch, which is their network;
    by default there is none.
    """

    def __init__(
        self,
        hosts: int,
        servers: int,
        models: str,
        *,
        nics: Mapping[str, Sequence[str]] | None = None,
        weather: str | None = None,
        log_dir: Path | None = None,
    ) -> None:
        super().__init__(log_dir=log_dir)
        self._nics = nics or {}
        self._weather = weather
        self.file = self.directory / "models.toml"
        names = [("hosts", f"h{number}") for number in range(hosts)]
        names += [("servers", f"ps{number}") for number in range(servers)]
        lines = []
        for (table, name), fields in zip(names, self._places([name for _, name in names]), strict=True):
            lines += [f"[[{table}]]", f'name = "{name}"', *fields]
        self.file.write_text("\n".join([*lines, models]))
        self.models: Models = load_models(self.file)

    def _places(self, names: Sequence[str]) -> list[list[str]]:
        """What else the models file says of each host or server, as TOML."""
        return [[f'address = "tcp://127.0.0.1:{port}"'] for port in free_ports(len(names))]

    @property
    def servers(self) -> list[Child]:
        """In the place of switches: started first, stopped last."""
        return self.switches

    def store(self, server: str) -> Path:
        return self.directory / f"{server}.store"

    def _start(self) -> None:
        if self._weather is not None:
            argv = [inaproto_command(), "switch", "--dir", str(self.directory), "--weather", self._weather]
            self.servers.append(self._daemon("switch", argv))
        for name in self.models.servers:
            self.servers.append(self._daemon(name, self._argv(name)))
        for number, name in enumerate(self.models.hosts):
            self.hosts.append(self._daemon(name, self._argv(name, number)))

    def _argv(self, name: str, host: int | None = None) -> list[str]:
        kind = "server" if host is None else "host"
        argv = [inaproto_command(), kind, "--dir", str(self.directory), "--models", str(self.file)]
        argv += ["--name", name, *self._nics.get(name, ())]
        return argv if host is None else [*argv, "--ip", f"10.0.{host >> 8}.{(host & 255) + 1}"]

    def kill(self, name: str) -> None:
        """SIGKILL it, as a power cut would."""
        child = self._of(name)
        child.process.kill()
        child.process.wait()
        child.release()
        self._ready_names.discard(name)

    def begin_again(self, name: str) -> None:
        """Start one that was killed; its log goes on. In a thread that ends the process would end with it."""
        group = self.servers if name in self.models.servers else self.hosts
        index = next(number for number, child in enumerate(group) if child.name == name)
        host = index if group is self.hosts else None
        group[index] = self._daemon(name, self._argv(name, host), append=True)

    def wait_ready(self, name: str) -> None:
        """Until it is, in any thread. Raises ``ClusterError``."""
        self._wait_ready([self._of(name)])

    def stop(self) -> None:
        """All daemons, in good order; their files stay until the cluster is closed."""
        stop_children(self.hosts)
        stop_children(self.servers)

    def status(self, name: str) -> dict[str, Any]:
        """What ``inaproto status --json`` shows of a host or server."""
        path = server_socket(name) if name in self.models.servers else f"{name}.sock"
        return self._status(self._of(name), name, self.directory / path)

    def _of(self, name: str) -> Child:
        return next(child for child in self.daemons if child.name == name)


def free_ports(count: int) -> list[int]:
    """Ports of loopback at which nobody listens now."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            found.append(int(sock.getsockname()[1]))
        return found
