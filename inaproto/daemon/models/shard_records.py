"""Messages and records of one shard, whose arrays are of its elements.

What has come from a peer or from the disk has arrays of bytes; here they become arrays of the shard's dtype,
or a ``DecodeError``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.daemon.settings.models_file import Shard
from inaproto.errors import DecodeError
from inaproto.wire.control_messages import Message, decode_with_arrays
from inaproto.wire.messages.array_frames import Frame
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.models import FIRST_EPOCH, Epoch, Push, ShardChange, ShardState, Weights, Word

_LAYER: Final = "overlay"


def heard(message: Message, shard: Shard) -> Word:
    """The word that the message is. Raises ``DecodeError`` for what no node of the shard's tree says."""
    if not isinstance(message, Word):
        raise DecodeError(_LAYER, f"a message of type {message.TYPE!r}, which no node of a tree says")
    if isinstance(message, Push) and message.delta is not None:
        return replace(message, delta=_elements(message.delta, message, shard))
    if isinstance(message, Weights):
        return replace(message, weights=_elements(message.weights, message, shard))
    return message


def change_of(record: RootRecord) -> ShardChange:
    epoch = () if record.epoch is None else record.epoch.numbers
    return ShardChange(clocks=record.clocks, epoch=epoch, delta=record.delta)


def state_of(snapshot: RootSnapshot, shard: Shard) -> ShardState:
    model = shard.model
    return ShardState(
        model=model.name,
        shard=shard.number,
        first=shard.first,
        elements=shard.elements,
        dtype=model.settings.dtype,
        clocks=snapshot.clocks,
        epoch=snapshot.epoch.numbers,
        weights=snapshot.weights,
        workers=model.workers,
        model_elements=model.elements,
        shards=len(model.servers),
        fraction_bits=model.settings.fraction_bits,
    )


def change_in(frame: Frame) -> ShardChange:
    """The change in an entry of a log, whatever shard it is of. Raises ``DecodeError``."""
    message = decode_with_arrays(frame)
    if not isinstance(message, ShardChange):
        raise DecodeError(_LAYER, f"{message.TYPE!r} in the log of a shard")
    return message


def state_in(frame: Frame) -> ShardState:
    """The state in a snapshot, whatever shard it is of. Raises ``DecodeError``."""
    message = decode_with_arrays(frame)
    if not isinstance(message, ShardState):
        raise DecodeError(_LAYER, f"{message.TYPE!r}, where a shard's state was to be")
    return message


def record_of(frame: Frame, shard: Shard) -> RootRecord:
    """The change in an entry of the shard's log. Raises ``DecodeError``."""
    change = change_in(frame)
    delta = None if change.delta is None else _elements(change.delta, change, shard)
    return RootRecord(change.clocks, delta, _epoch(change.epoch) if change.epoch else None)


def snapshot_of(frame: Frame, shard: Shard) -> RootSnapshot:
    """The state in the shard's snapshot, by the numbers that workers had when it was written. Raises
    ``DecodeError``."""
    state = state_in(frame)
    epoch = _epoch(state.epoch) if state.epoch else FIRST_EPOCH
    return RootSnapshot(_elements(state.weights, state, shard), state.clocks, epoch)


def _epoch(numbers: tuple[int, ...]) -> Epoch:
    if len(numbers) != 4:
        raise DecodeError(_LAYER, f"an epoch of {len(numbers)} numbers")
    return Epoch(*numbers)


def _elements(array: Numbers, behind: Message, shard: Shard) -> Numbers:
    if array.nbytes != shard.nbytes:
        raise DecodeError(
            _LAYER, f"{array.nbytes} bytes behind {behind.TYPE!r}, not {shard.nbytes} of {shard}"
        )
    return array.view(shard.model.dtype)
