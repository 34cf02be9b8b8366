"""Hosts and parameter servers of models, each a machine with an access link of its own, of a known rate.

A machine is a network namespace; all are at one switch, a bridge in a namespace of its own. Both ends of each
access link are shaped by a token bucket, whose queue is that of a port: so what a machine sends, and what is
sent to it, is as fast as its link. They speak TLS, as machines have to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.ca import authority
from inaproto.ca.identity import Role
from inaproto_hil.rigs.links import INTERFACE, Shape, bridge, port, star
from inaproto_hil.rigs.models_cluster import ModelsCluster
from inaproto_hil.rigs.namespaces import Namespace, check_namespaces, namespaces

PORT: Final = 7500
BURST_BYTES: Final = 16 << 10
"""Burst of the token buckets: what may go at once after a pause, and the largest packet of the kernel's."""
_CONGESTION_CONTROL: Final = "reno"
"""Congestion control of TCP on all machines: every kernel has it."""


@dataclass(frozen=True, slots=True)
class Link:
    """An access link, each way."""

    mbit: int
    queue_ms: int = 50
    """Time's worth of packets that a port keeps before it drops."""


class ShapedModelsCluster(ModelsCluster):
    """Made by :func:`shaped_cluster`."""

    def __init__(
        self,
        machines: Sequence[Namespace],
        hosts: int,
        servers: int,
        models: str,
        *,
        link: Link,
        log_dir: Path | None = None,
    ) -> None:
        self._machines: dict[str, Namespace] = {}
        self._given = list(machines)
        self._link = link
        super().__init__(hosts, servers, models, log_dir=log_dir)
        signer = authority.create(self.directory / "ca")
        for name in self._machines:
            signer.issue(Role.MODEL, name, directory=self.directory / f"{name}.tls")

    def _places(self, names: Sequence[str]) -> list[list[str]]:
        self._machines = dict(zip(names, self._given, strict=True))
        return [
            [f'address = "tls://{address_of(number)}:{PORT}"', f"link_mbit = {self._link.mbit}"]
            for number in range(len(names))
        ]

    def _argv(self, name: str, host: int | None = None) -> list[str]:
        tls = "--tls" if host is None else "--models-tls"
        return [*super()._argv(name, host), tls, str(self.directory / f"{name}.tls")]

    def _network_of(self, name: str) -> str:
        return self._machines[name].path


def address_of(machine: int) -> str:
    return f"10.77.0.{machine + 1}"


@contextmanager
def shaped_cluster(
    hosts: int, servers: int, models: str, *, link: Link, log_dir: Path | None = None
) -> Iterator[ShapedModelsCluster]:
    """All daemons started. Raises ``Unsupported`` where there are no namespaces."""
    check_namespaces()
    titles = [*(f"host {number}" for number in range(hosts)), *(f"server {n}" for n in range(servers))]
    with namespaces("network", *titles) as (network, *machines):
        _connect(network, machines, link)
        with ShapedModelsCluster(machines, hosts, servers, models, link=link, log_dir=log_dir) as cluster:
            yield cluster


def _connect(network: Namespace, machines: Sequence[Namespace], link: Link) -> None:
    queue = max(2 * BURST_BYTES, link.mbit * 125 * link.queue_ms)
    shape = Shape(link.mbit * 1_000_000, burst_bytes=BURST_BYTES, queue_bytes=queue)
    star(network, machines, shape)
    bridge(network, "bridge", [port(number) for number in range(len(machines))])
    for number, machine in enumerate(machines):
        machine.write("ipv4/tcp_congestion_control", _CONGESTION_CONTROL)
        machine.ip("addr", "add", f"{address_of(number)}/24", "dev", INTERFACE)
