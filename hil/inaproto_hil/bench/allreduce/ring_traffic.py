"""What each of the parallel rings of a run has carried: its daemons are those of one NIC of each machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inaproto_hil.rigs.cluster import LocalCluster


@dataclass(frozen=True, slots=True)
class RingTraffic:
    """Bytes of Ethernet frames, of all NICs of a ring, since they started; with acknowledgements."""

    ring: int
    bytes_sent: int
    bytes_received: int
    retransmits: int
    """Packets that were sent again: on a busy machine, where nothing is lost, too."""

    def line(self) -> str:
        return f"# ring {self.ring}: its NICs sent {self.bytes_sent} bytes, received {self.bytes_received}"


def daemon_of(machine: int, ring: int, rings: int) -> int:
    """The number of the host daemon that has NIC ``ring`` of a machine."""
    return machine * rings + ring


def sockets(cluster: LocalCluster, machine: int, rings: int) -> list[str]:
    """Sockets of the host daemons of a machine, in the order of their rings."""
    return [str(cluster.host_socket(daemon_of(machine, ring, rings))) for ring in range(rings)]


def by_ring(nics: Sequence[dict[str, Any]], rings: int) -> list[RingTraffic]:
    """``nics``: the counters of each host daemon, in order."""
    return [
        RingTraffic(
            ring,
            sum(nic["bytes_sent"] for nic in nics[ring::rings]),
            sum(nic["bytes_received"] for nic in nics[ring::rings]),
            sum(nic["retransmits"] for nic in nics[ring::rings]),
        )
        for ring in range(rings)
    ]
