"""What a rank of a chain or ring of hosts gets from its predecessor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inaproto.core.host.operations import Operation, ResultArrived, RingConfig
from inaproto.units import Instant, OpIndex
from inaproto.wire.host_header import HOST_HEADER_BYTES, HostHeader, Kind
from inaproto.wire.ina_header import FLAG_LAST, Dtype, InaHeader, Op

NOW = Instant(0)
FULL = 2 * 256 - HOST_HEADER_BYTES
SIGNATURE = 0x1234


def operation(index: int = 0, nbytes: int = FULL, dtype: Dtype = Dtype.I32) -> Operation:
    return Operation(OpIndex(index), dtype, Op.SUM, nbytes, SIGNATURE)


def message_at(
    config: RingConfig, kind: Kind, serial: int, nbytes: int, *, last: bool, **fields: Any
) -> ResultArrived:
    """What the predecessor sends: ``nbytes`` of payload, of operation 0; ``last``: it ends with that."""
    header = InaHeader(
        dtype=Dtype.I32,
        op=Op.SUM,
        flags=FLAG_LAST if last else 0,
        ring_id=config.ring_id,
        epoch=config.epoch,
        op_index=0,
        msg_id=(2 * serial + (kind is Kind.RESULT)) % (1 << config.id_bits),
        rank=(config.rank - 1) % config.ring_size,
        ring_size=config.ring_size,
        msg_len=-(-(HOST_HEADER_BYTES + nbytes) // config.mtu),
        signature=SIGNATURE,
        key=config.key,
    )
    data = HostHeader(kind, replace(header, **fields)).encode()
    return ResultArrived(header.msg_id, HOST_HEADER_BYTES + nbytes, data)


def kinds(actions: Sequence[object]) -> list[type]:
    return [type(action) for action in actions]
