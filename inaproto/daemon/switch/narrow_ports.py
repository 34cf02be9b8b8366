"""Ports of a switch that are too small for a ring: what goes there for a host of it is dropped.

A host that probes its path (:mod:`inaproto.daemon.host.path_mtu`) does not get that far. Not every host can,
and a port's MTU may be made smaller later: then the job would stand still, unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from inaproto.core.rdma.nic_config import IPV6_BYTES_MORE, OVERHEAD_BYTES_MAX
from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.wire.outer import IPV6_ADDRESS_BYTES


class PortSize(NamedTuple):
    name: str
    frame_bytes_max: int


def narrow_ports(
    specs: Iterable[RingSpec], addresses: Mapping[bytes, int], ports: Mapping[int, PortSize]
) -> list[dict[str, Any]]:
    """One record for each port and ring; ``addresses``: the port behind which each Ethernet address is."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for spec in specs:
        for flow in spec.flows:
            at = addresses.get(flow.src_mac, -1)
            port = ports.get(at)
            more = IPV6_BYTES_MORE if len(flow.src_ip) == IPV6_ADDRESS_BYTES else 0
            if port is None or spec.mtu + OVERHEAD_BYTES_MAX + more <= port.frame_bytes_max:
                continue
            room = port.frame_bytes_max - OVERHEAD_BYTES_MAX - more
            found[at, spec.ring_id] = {
                "port": port.name,
                "job": spec.job,
                "ring_id": spec.ring_id,
                "mtu": spec.mtu,
                "carries": max((mtu for mtu in MTUS if mtu <= room), default=0),
            }
    return list(found.values())
