"""Racks on this machine: a leaf switch in each, a spine above them, and the hosts at the leaves.

There may be further spines, for rings along trees that are assigned to them; every leaf has a trunk to each.
The fabric file and the sockets lie in the cluster's directory. The link from any leaf to the spine can go
through a relay, which cuts it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto_hil.rigs.cluster import Child, Cluster, inaproto_command
from inaproto_hil.rigs.link_relay import LinkRelay

SPINE = "spine"
FABRIC_FILE = "fabric.toml"
SEEDS = 1 << 63
"""A switch takes seeds below this."""


@dataclass(frozen=True, slots=True)
class FabricConfig:
    """What is started. ``weather`` is of every switch's ports, e.g. ``drop=0.01,reorder=0.01``."""

    racks: int = 2
    hosts_per_rack: int = 2
    spines: int = 1
    """The first is the root of the fabric; the others are further roots, ``spine1`` and so on."""
    weather: str = ""
    seed: int = 1
    relayed: tuple[str, ...] = ()
    """Leaves whose link to the spine can be cut."""
    switch_options: tuple[str, ...] = ()
    host_options: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(f"leaf{rack}" for rack in range(self.racks))

    @property
    def roots(self) -> tuple[str, ...]:
        """The spines, that of the fabric's own tree first."""
        return (SPINE, *(f"{SPINE}{number}" for number in range(1, self.spines)))

    @property
    def switches(self) -> tuple[str, ...]:
        """The root first."""
        return (*self.roots, *self.leaves)

    @property
    def hosts(self) -> int:
        return self.racks * self.hosts_per_rack

    def leaf_of(self, host: int) -> str:
        return self.leaves[host // self.hosts_per_rack]


class FabricCluster(Cluster):
    """``links`` has the relay of each leaf in ``relayed``."""

    def __init__(self, config: FabricConfig, *, log_dir: Path | None = None) -> None:
        super().__init__(log_dir=log_dir)
        self.config = config
        self.links: dict[str, LinkRelay] = {}

    def _start(self) -> None:
        config = self.config
        (self.directory / FABRIC_FILE).write_text(fabric_toml(config, self.directory))
        for leaf in config.relayed:
            listens = self.directory / SPINE / f"trunk-{leaf}.sock"
            self.links[leaf] = LinkRelay(link_socket(self.directory, leaf), listens)
        for name in config.switches:
            self.switches.append(self._daemon(name, self._switch_argv(name, config.switch_options)))
        for host in range(config.hosts):
            options = ("--switch", config.leaf_of(host), *config.host_options)
            self.hosts.append(self._host(host, self.directory / SPINE, *options))

    def switch(self, name: str) -> Child:
        return self.switches[self.config.switches.index(name)]

    def reboot(self, switch: str, *options: str) -> None:
        """SIGKILL it, as a power cut would, and start another, with these options besides.

        That one is not awaited: see ``is_ready``.
        """
        argv = self._switch_argv(switch, (*self.config.switch_options, *options))
        self._start_switch_again(self.config.switches.index(switch), argv)

    def _switch_argv(self, name: str, options: Sequence[str]) -> list[str]:
        config = self.config
        argv = [inaproto_command(), "switch", "--fabric", str(self.directory / FABRIC_FILE), "--name", name]
        if config.weather:  # the ports of two switches have the same names, so each has weather of its own
            seed = (config.seed * len(config.switches) + config.switches.index(name)) % SEEDS
            argv += ["--weather", config.weather, "--seed", str(seed)]
        return [*argv, *options]

    def switch_status(self, switch: str = SPINE) -> dict[str, Any]:
        """What ``inaproto status --json`` shows of a switch; of the spine: of the jobs."""
        return self._status(self.switch(switch), switch, self.directory / switch / CONTROL_SOCKET)

    def whole_status(self) -> dict[str, Any]:
        """What ``inaproto status --json`` shows of all daemons."""
        root, *others = (self.switch_status(name) for name in self.config.switches)
        hosts = [self.host_status(host) for host in range(self.config.hosts)]
        return {"switch": root, "other_switches": others, "hosts": hosts, "servers": [], "problems": []}

    def close(self) -> None:
        for link in self.links.values():
            link.cut()
        super().close()


def link_socket(directory: Path, leaf: str) -> Path:
    """Where a relayed leaf dials."""
    return directory / f"link-{leaf}.sock"


def fabric_toml(config: FabricConfig, directory: Path) -> str:
    """The fabric file: the spines, and the leaves below them."""
    lines = []
    for name in config.switches:
        lines += ["[[switches]]", f"name = {json.dumps(name)}", f"dir = {json.dumps(str(directory / name))}"]
        if name in config.leaves:
            lines.append(f"above = {json.dumps(SPINE if config.spines == 1 else config.roots)}")
        if name in config.relayed:
            lines.append(f"trunk = {json.dumps(str(link_socket(directory, name)))}")
        lines.append("")
    return "\n".join(lines)
