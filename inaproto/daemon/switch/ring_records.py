"""Rings as control messages carry them to other switches, and back."""

from __future__ import annotations

from inaproto.core.plan.aggregation_tree import Role, SwitchAddress, VirtualConnection
from inaproto.core.switch.ring_spec import FlowSpec, PoolSpec, RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import PortId
from inaproto.wire.messages.switch import (
    FlowRecord,
    InputRecord,
    LinkRecord,
    NoteRecord,
    PoolRecord,
    RingInstall,
    RoleRecord,
)


def install_message(spec: RingSpec) -> RingInstall:
    return RingInstall(
        ring_id=spec.ring_id,
        epoch=spec.epoch,
        ring_key=spec.key,
        window_messages=spec.window_messages,
        message_packets=spec.message_packets,
        mtu=spec.mtu,
        flows=tuple(map(_flow_record, spec.flows)),
        psn_bits=spec.psn_bits,
        msg_id_bits=spec.msg_id_bits,
        role=None if spec.role is None else _role_record(spec.role),
        pool=None if spec.pool is None else PoolRecord(name=spec.pool.name, capacity=spec.pool.capacity),
        first_message=spec.first_message,
        job=spec.job,
    )


def ring_of(message: RingInstall) -> RingSpec:
    """Raises ``LocalMisuse`` for what no ring can be."""
    return RingSpec(
        message.ring_id,
        message.epoch,
        message.ring_key,
        message.window_messages,
        message.message_packets,
        message.mtu,
        tuple(_flow_of(rank, record) for rank, record in enumerate(message.flows)),
        message.psn_bits,
        message.msg_id_bits,
        None if message.role is None else _role_of(message.role),
        None if message.pool is None else PoolSpec(message.pool.name, message.pool.capacity),
        message.first_message,
        message.job,
    )


def _flow_record(flow: FlowSpec) -> FlowRecord:
    return FlowRecord(
        src_ip=flow.src_ip,
        dst_ip=flow.dst_ip,
        dst_qp=flow.dst_qp,
        src_mac=flow.src_mac or None,
        dst_mac=flow.dst_mac or None,
    )


def _flow_of(rank: int, record: FlowRecord) -> FlowSpec:
    addresses = record.src_mac or b"", record.dst_mac or b""
    return FlowSpec(rank, record.src_ip, record.dst_ip, record.dst_qp, *addresses)


def _role_record(role: Role) -> RoleRecord:
    return RoleRecord(
        inputs=tuple(
            InputRecord(rank=one) if isinstance(one, int) else InputRecord(link=_link_record(one))
            for one in role.inputs
        ),
        parent=None if role.parent is None else _link_record(role.parent),
        delivers=role.delivers,
        notes=tuple(NoteRecord(rank=rank, link=_link_record(link)) for rank, link in role.notes),
        steered=role.steered,
        steer_to=None if role.steer_to is None else int(role.steer_to),
        passes=tuple(map(_link_record, role.passes)),
        below=None if role.below is None else tuple(map(int, role.below)),
    )


def _role_of(record: RoleRecord) -> Role:
    return Role(
        inputs=tuple(map(_input_of, record.inputs)),
        parent=None if record.parent is None else _link_of(record.parent),
        delivers=record.delivers,
        notes=tuple((note.rank, _link_of(note.link)) for note in record.notes),
        steered=record.steered,
        steer_to=None if record.steer_to is None else PortId(record.steer_to),
        passes=tuple(map(_link_of, record.passes)),
        below=None if record.below is None else tuple(map(PortId, record.below)),
    )


def _input_of(record: InputRecord) -> int | VirtualConnection:
    if record.rank is not None and record.link is None:
        return record.rank
    if record.link is not None and record.rank is None:
        return _link_of(record.link)
    raise LocalMisuse("an input of a ring is a rank or a connection, just one of them")


def _link_record(link: VirtualConnection) -> LinkRecord:
    return LinkRecord(
        peer=link.peer,
        port=int(link.port),
        here_mac=link.here.mac,
        here_ip=link.here.ip,
        there_mac=link.there.mac,
        there_ip=link.there.ip,
        qp=link.qp,
        rank=link.rank,
    )


def _link_of(record: LinkRecord) -> VirtualConnection:
    return VirtualConnection(
        record.peer,
        PortId(record.port),
        SwitchAddress(record.here_mac, record.here_ip),
        SwitchAddress(record.there_mac, record.there_ip),
        record.qp,
        record.rank,
    )
