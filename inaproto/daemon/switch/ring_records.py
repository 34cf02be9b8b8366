"""Rings as control messages carry them to other switches, and back."""

from __future__ import annotations

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.wire.messages.switch import (
    FlowRecord,
    RingInstall,
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
        role=spec.role,
        pool=spec.pool,
        first_message=spec.first_message,
        job=spec.job,
        selective=spec.selective,
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
        message.role,
        message.pool,
        message.first_message,
        message.job,
        message.selective,
    )


def _flow_record(flow: FlowSpec) -> FlowRecord:
    return FlowRecord(
        src_ip=flow.src_ip,
        dst_ip=flow.dst_ip,
        dst_qp=flow.dst_qp,
        src_mac=flow.src_mac or None,
        dst_mac=flow.dst_mac or None,
        src_qp=flow.src_qp,
    )


def _flow_of(rank: int, record: FlowRecord) -> FlowSpec:
    addresses = record.src_mac or b"", record.dst_mac or b""
    return FlowSpec(rank, record.src_ip, record.dst_ip, record.dst_qp, *addresses, record.src_qp)
