"""What stands in an accelerator's tables of a ring: a row of each table, as the register map has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.core.switch.tree.translation import Connection, inward, start_psn
from inaproto.wire.messages.switch import VirtualConnection
from inaproto_adapters.fpga.register_map import (
    CONN_ROW,
    RING_ROW,
    TREE_ROW,
    pack,
)

MSG_ID_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a ring is: its index in the tables, and its slots; of one of a pool those of all places."""

    ring: int
    base: int
    slots: int


@dataclass(frozen=True, slots=True)
class PoolPlacement:
    """Where a pool is: its places in the table of these, and the slots of each, one behind the other."""

    place: int
    capacity: int
    base: int
    slots: int
    """Of one place."""


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "big")


def conn_row(flow: FlowSpec, **more: int) -> list[int]:
    return pack(
        CONN_ROW,
        src_ip=_number(flow.src_ip),
        dst_ip=_number(flow.dst_ip),
        dst_qp=flow.dst_qp,
        valid=1,
        src_mac=_number(flow.src_mac),
        dst_mac=_number(flow.dst_mac),
        macs_known=bool(flow.addresses),
        **more,
    )


def virtual_row(connection: VirtualConnection, **more: int) -> list[int]:
    """What comes from another switch."""
    flow = FlowSpec(connection.rank, *inward(connection), connection.there_mac, connection.here_mac)
    return conn_row(flow, rank=connection.rank, port=connection.port, **more)


def links_of(spec: RingSpec) -> list[Connection]:
    """Virtual connections on which packets come."""
    role = spec.role
    if role is None:
        return []
    return [inward(link) for link in (*role.children, role.parent) if link is not None]


def tree_row(spec: RingSpec) -> list[int]:
    role = spec.role
    if role is None:
        return pack(TREE_ROW)
    return pack(
        TREE_ROW,
        valid=1,
        has_parent=role.parent is not None,
        inputs=len(role.inputs),
        parent_port=0 if role.parent is None else role.parent.port,
        start_psn=start_psn(spec),
    )


def ring_row(spec: RingSpec, placement: Placement, pool: PoolPlacement | None) -> list[int]:
    return pack(
        RING_ROW,
        ring_id=spec.ring_id,
        key=spec.key,
        epoch=spec.epoch,
        size=spec.size,
        window=spec.window_messages,
        message_packets=spec.message_packets,
        mtu=spec.mtu,
        pooled=pool is not None,
        place=0 if pool is None else pool.place,
        log2_places=0 if pool is None else pool.capacity.bit_length() - 1,
        selective=spec.selective,
        valid=1,
        base=placement.base,
        # A message is known by the number that it has in INA headers.
        first_message=spec.first_message & (1 << MSG_ID_BITS) - 1,
    )
