"""What a host's settings mean for each of its rings."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.collective_terms import CollectiveTerms
from inaproto.core.host.config import HostConfig
from inaproto.core.host.link import memory_bytes
from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.daemon.settings.config import HostSettings
from inaproto.ports import QpAttributes
from inaproto.units import MS

MTU_DEFAULT: Final = 1024
"""Where an MTU is found, and the path is not known. The packets of a message are counted in it then."""
OPERATIONS_MAX: Final = 4096
"""All-reduces of a rank that have not ended."""


def host_config(
    job: str, settings: HostSettings, collective: CollectiveTerms | None = None, *, mtu: int = MTU_DEFAULT
) -> HostConfig:
    """``collective``: what the collective library of the host takes; ``mtu``: what was found, if settings say
    none. Then a message has the same bytes whatever it is, a multiple of the largest."""
    message_packets = settings.message_packets
    if not settings.asked_mtu:
        message_packets = max(1, message_packets * MTU_DEFAULT // MTUS[-1]) * (MTUS[-1] // mtu)
    return HostConfig(
        job=job,
        host=settings.name,
        mtu=settings.asked_mtu or mtu,
        mtu_fits=not settings.asked_mtu,
        message_packets=message_packets,
        window_messages=settings.window_messages,
        stall_ns=settings.stall_ms * MS,
        timeout_ns=settings.operation_timeout_ms * MS,
        recover_ns=settings.recover_ms * MS,
        operations_max=OPERATIONS_MAX,
        collective=collective,
        try_ns=settings.collective_timeout_ms * MS,
    )


def link_bytes(settings: HostSettings) -> int:
    """Memory of the link of a ring through a switch."""
    config = host_config("", settings)
    return memory_bytes(slots=2 * config.window_messages, slot_bytes=config.message_bytes, areas=1)


def qp_attributes(settings: HostSettings, mtu: int = MTU_DEFAULT) -> QpAttributes:
    """``mtu``: if settings say none."""
    return QpAttributes(
        mtu=settings.asked_mtu or mtu,
        timeout=settings.transport_timeout,
        retry_count=settings.retry_count,
        traffic_class=settings.traffic_class,
        service_level=settings.service_level,
    )
