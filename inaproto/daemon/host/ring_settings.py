"""What a host's settings mean for each of its rings."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.collective_terms import CollectiveTerms
from inaproto.core.host.config import HostConfig
from inaproto.core.host.link import memory_bytes
from inaproto.daemon.settings.config import HostSettings
from inaproto.ports import QpAttributes
from inaproto.units import MS

OPERATIONS_MAX: Final = 4096
"""All-reduces of a rank that have not ended."""


def host_config(job: str, settings: HostSettings, collective: CollectiveTerms | None = None) -> HostConfig:
    """``collective``: what the collective library of the host takes."""
    return HostConfig(
        job=job,
        host=settings.name,
        mtu=settings.mtu,
        message_packets=settings.message_packets,
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


def qp_attributes(settings: HostSettings) -> QpAttributes:
    return QpAttributes(
        mtu=settings.mtu,
        timeout=settings.transport_timeout,
        retry_count=settings.retry_count,
        traffic_class=settings.traffic_class,
        service_level=settings.service_level,
    )
