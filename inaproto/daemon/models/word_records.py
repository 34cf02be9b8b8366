"""Words and records of push and pull as messages with arrays, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple, assert_never

import numpy as np

from inaproto.core.models.clocks import Clocks, WorkerId
from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.core.models.messages import (
    FIRST_EPOCH,
    Attach,
    Attached,
    Detach,
    Detached,
    Epoch,
    Flush,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    Mode,
    NodeId,
    Numbers,
    PullRequest,
    Push,
    Reshaped,
    Weights,
    Word,
)
from inaproto.daemon.settings.models_file import Shard
from inaproto.errors import DecodeError
from inaproto.wire.array_frames import Frame
from inaproto.wire.control_messages import Message, decode_message
from inaproto.wire.push_pull_messages import (
    PushPullAlive,
    PushPullAttach,
    PushPullAttached,
    PushPullDetach,
    PushPullDetached,
    PushPullFlush,
    PushPullHeartbeat,
    PushPullMerged,
    PushPullMode,
    PushPullPush,
    PushPullRequest,
    PushPullReshaped,
    PushPullWeights,
    ShardChange,
    ShardState,
)

_LAYER: Final = "overlay"


class Told(NamedTuple):
    """A message and what goes behind it."""

    message: Message
    payload: tuple[memoryview, ...] = ()


def told(word: Word) -> Told:
    match word:
        case Attach(session, workers, floor, epoch):
            return Told(
                PushPullAttach(session=session, workers=tuple(workers), floor=_pairs(floor), epoch=epoch)
            )
        case Push(session, clock, before, after, delta):
            arrays = _views(delta)
            message = PushPullPush(
                session=session, clock=clock, before=_pairs(before), after=_pairs(after), arrays=len(arrays)
            )
            return Told(message, arrays)
        case PullRequest(needed):
            return Told(PushPullRequest(needed=needed))
        case Flush():
            return Told(PushPullFlush())
        case Heartbeat(dead, lost, load):
            return Told(PushPullHeartbeat(dead=tuple(dead), lost=tuple(lost), load=load))
        case Detach(session):
            return Told(PushPullDetach(session=session))
        case Attached(session, base, root, direct):
            return Told(
                PushPullAttached(session=session, base=_pairs(base), root=_pairs(root), direct=direct)
            )
        case Detached(session, reason):
            return Told(PushPullDetached(session=session, reason=reason))
        case Weights(weights, included, root):
            message_down = PushPullWeights(included=_pairs(included), root=_pairs(root))
            return Told(message_down, _views(weights))
        case Merged(root):
            return Told(PushPullMerged(root=_pairs(root)))
        case Mode(direct):
            return Told(PushPullMode(direct=direct))
        case Reshaped(newest):
            return Told(PushPullReshaped(epoch=_numbers(newest)))
        case HeartbeatAnswer(is_attached):
            return Told(PushPullAlive(is_attached=is_attached))
        case _:
            assert_never(word)


def heard(message: Message, payload: memoryview, shard: Shard) -> Word:
    """Raises ``DecodeError`` for what no node of the shard's tree says."""
    array = _array(message, payload, shard)
    match message:
        case PushPullAttach(session=session, workers=workers, floor=floor, epoch=number):
            return Attach(session, tuple(map(WorkerId, workers)), _clocks(floor), number)
        case PushPullPush(session=session, clock=clock, before=before, after=after):
            return Push(session, clock, _clocks(before), _clocks(after), array)
        case PushPullRequest(needed=needed):
            return PullRequest(needed)
        case PushPullFlush():
            return Flush()
        case PushPullHeartbeat(dead=dead, lost=lost, load=load):
            return Heartbeat(tuple(map(NodeId, dead)), tuple(map(WorkerId, lost)), load)
        case PushPullDetach(session=session):
            return Detach(session)
        case PushPullAttached(session=session, base=base, root=root, direct=direct):
            return Attached(session, _clocks(base), _clocks(root), direct)
        case PushPullDetached(session=session, reason=reason):
            return Detached(session, reason)
        case PushPullWeights(included=included, root=root) if array is not None:
            return Weights(array, _clocks(included), _clocks(root))
        case PushPullMerged(root=root):
            return Merged(_clocks(root))
        case PushPullMode(direct=direct):
            return Mode(direct)
        case PushPullReshaped(epoch=epoch):
            return Reshaped(_epoch(epoch))
        case PushPullAlive(is_attached=is_attached):
            return HeartbeatAnswer(is_attached)
        case _:
            raise DecodeError(_LAYER, f"a message of type {message.TYPE!r}, which no node of a tree says")


def change_of(record: RootRecord) -> Told:
    arrays = _views(record.delta)
    epoch = () if record.epoch is None else _numbers(record.epoch)
    return Told(ShardChange(clocks=_pairs(record.clocks), epoch=epoch, arrays=len(arrays)), arrays)


def state_of(snapshot: RootSnapshot, shard: Shard) -> Told:
    return Told(
        replace(_identity(shard), clocks=_pairs(snapshot.clocks), epoch=_numbers(snapshot.epoch)),
        _views(snapshot.weights),
    )


def record_of(frame: Frame, shard: Shard) -> RootRecord:
    """Raises ``DecodeError``."""
    message = decode_message(frame.record)
    if not isinstance(message, ShardChange):
        raise DecodeError(_LAYER, f"{message.TYPE!r} in the log of a shard")
    epoch = _epoch(message.epoch) if message.epoch else None
    return RootRecord(_clocks(message.clocks), _array(message, frame.payload, shard), epoch)


def snapshot_of(frame: Frame, shard: Shard) -> RootSnapshot:
    """The snapshot, by the numbers of workers that it was written with. Raises ``DecodeError``."""
    message = decode_message(frame.record)
    if not isinstance(message, ShardState):
        raise DecodeError(_LAYER, f"{message.TYPE!r}, where a shard's state was to be")
    weights = _array(message, frame.payload, shard)
    if weights is None:
        raise DecodeError(_LAYER, "a snapshot without weights")
    epoch = _epoch(message.epoch) if message.epoch else FIRST_EPOCH
    return RootSnapshot(weights, _clocks(message.clocks), epoch)


def _identity(shard: Shard) -> ShardState:
    model = shard.model
    return ShardState(
        model=model.name,
        shard=shard.number,
        first=shard.first,
        elements=shard.elements,
        dtype=model.settings.dtype,
        clocks=(),
        workers=model.workers,
        model_elements=model.elements,
        shards=len(model.servers),
        fraction_bits=model.settings.fraction_bits,
    )


# --- parts


def _numbers(epoch: Epoch) -> tuple[int, ...]:
    return epoch.number, epoch.before, epoch.tree, epoch.first


def _epoch(numbers: tuple[int, ...]) -> Epoch:
    if len(numbers) != 4:
        raise DecodeError(_LAYER, f"an epoch of {len(numbers)} numbers")
    return Epoch(*numbers)


def _pairs(clocks: Clocks) -> tuple[tuple[int, ...], ...]:
    return tuple((int(worker), clock) for worker, clock in clocks.items())


def _clocks(pairs: tuple[tuple[int, ...], ...]) -> Clocks:
    found: dict[WorkerId, int] = {}
    for pair in pairs:
        if len(pair) != 2 or WorkerId(pair[0]) in found:
            raise DecodeError(_LAYER, f"clocks of which one is {pair}, or twice there")
        found[WorkerId(pair[0])] = pair[1]
    return Clocks(found)


def _views(array: Numbers | None) -> tuple[memoryview, ...]:
    return () if array is None else (np.ascontiguousarray(array).data,)


def _array(message: Message, payload: memoryview, shard: Shard) -> Numbers | None:
    """Not writeable; it owns the payload."""
    arrays: Any = getattr(message, "arrays", 0)
    if payload.nbytes != arrays * shard.nbytes:
        raise DecodeError(
            _LAYER,
            f"{payload.nbytes} bytes behind {message.TYPE!r}, not {arrays} times {shard.nbytes} of {shard}",
        )
    if not arrays:
        return None
    array: Numbers = np.frombuffer(payload, shard.model.dtype)
    array.flags.writeable = False
    return array
