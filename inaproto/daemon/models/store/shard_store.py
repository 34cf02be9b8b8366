"""What a store has against what the models file says: whose shard it is, and whose clocks are whose.

Clocks in a store are by the numbers that workers had when it was written; a snapshot says their names. So a
models file in which workers have other places is no other model: each clock goes to its worker by name, and a
worker that is new is at clock 0, with which it is waited for. All else that makes weights other weights
(elements, their type, their places on servers) is refused, and so is a worker that is missing without having
left: others rely on updates that it would not make again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.daemon.models.shard_records import record_of, snapshot_of, state_in
from inaproto.daemon.models.store.durable_log import Found
from inaproto.daemon.settings.models_file import Shard
from inaproto.errors import ConfigError, DecodeError
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.models import ShardState


class Stored(NamedTuple):
    """What a store has, by the numbers that workers have now."""

    snapshot: RootSnapshot | None
    changes: list[RootRecord]
    news: str
    """News of workers, for people; empty: they are as they were. Otherwise a snapshot is due before anything
    is appended, because entries of one log have one numbering."""


def stored(found: Found, shard: Shard, directory: Path) -> Stored:
    """Raises ``ConfigError`` that says what differs and what to do."""
    try:
        if found.snapshot is None:
            return Stored(None, [record_of(frame, shard) for frame in found.changes], "")
        state = state_in(found.snapshot)
        fault = _other_shape(state, shard)
        if fault:
            raise ConfigError(f"store: {directory} {fault}")
        snapshot = snapshot_of(found.snapshot, shard)
        changes = [record_of(frame, shard) for frame in found.changes]
    except DecodeError as error:
        raise ConfigError(f"store: {directory}: {error.reason}") from None
    now = shard.model.workers
    before = state.workers or now
    clocks = _last(snapshot.clocks, changes)
    if len(before) != len(clocks):
        raise ConfigError(
            f"store: {directory} has {len(clocks)} workers and not their names, as an earlier version wrote "
            f"it; the models file has {len(now)}: start it once with the file that it was made with"
        )
    fault = _missing(before, now, clocks)
    if fault:
        raise ConfigError(f"store: {directory} {fault}")
    if state.workers == now:
        return Stored(snapshot, changes, "")
    if before == now:
        return Stored(snapshot, changes, "the names of its workers are those of the models file, from now on")
    numbers = {WorkerId(old): WorkerId(now.index(name)) for old, name in enumerate(before) if name in now}
    start = Clocks.alike(map(WorkerId, range(len(now))))
    return Stored(
        replace(snapshot, clocks=start.with_(_renumbered(snapshot.clocks, numbers))),
        [replace(change, clocks=_renumbered(change.clocks, numbers)) for change in changes],
        _news(before, now),
    )


def _other_shape(state: ShardState, shard: Shard) -> str:
    """What differs, and what to do."""
    model, settings = shard.model, shard.model.settings
    has = [
        (f"model {state.model!r}", f"{model.name!r}", state.model == model.name),
        (f"dtype {state.dtype}", settings.dtype, state.dtype == settings.dtype),
        (
            f"fraction_bits {_or_none(state.fraction_bits)}",
            _or_none(settings.fraction_bits),
            state.fraction_bits == settings.fraction_bits or not state.workers,
        ),
        (
            f"elements {state.model_elements}",
            f"{model.elements}",
            state.model_elements in (model.elements, 0),
        ),
        (
            f"part {state.shard} of {state.shards} servers",
            f"part {shard.number} of {len(model.servers)}",
            (state.shard, state.shards) in ((shard.number, len(model.servers)), (shard.number, 0)),
        ),
        (
            f"elements {state.first} to {state.first + state.elements} of it",
            f"{shard.first} to {shard.end}",
            (state.first, state.elements) == (shard.first, shard.elements),
        ),
    ]
    other = [f"{mine} (the models file: {theirs})" for mine, theirs, is_same in has if not is_same]
    if not other:
        return ""
    return (
        f"has {', '.join(other)}: put the models file back as it was, or begin anew by another name of the "
        "model; inaproto weights saves what is there"
    )


def _or_none(number: int | None) -> str:
    return "none" if number is None else str(number)


def _missing(before: Sequence[str], now: Sequence[str], clocks: Clocks) -> str:
    gone = [
        f"{name} ({clocks[WorkerId(number)]} updates)"
        for number, name in enumerate(before)
        if name not in now and clocks[WorkerId(number)] < FOREVER
    ]
    if not gone:
        return ""
    return (
        f"has updates of workers that the models file does not name: {', '.join(gone)}. Put them back; who "
        "is to go for good calls leave() first, or is removed after removal_ms"
    )


def _last(clocks: Clocks, changes: Sequence[RootRecord]) -> Clocks:
    for change in changes:
        clocks = clocks.with_(change.clocks)
    return clocks


def _renumbered(clocks: Clocks, numbers: Mapping[WorkerId, WorkerId]) -> Clocks:
    return Clocks((numbers[worker], clock) for worker, clock in clocks.items() if worker in numbers)


def _news(before: Sequence[str], now: Sequence[str]) -> str:
    new, gone = [[n for n in one if n not in other] for one, other in ((now, before), (before, now))]
    parts = []
    if any(now.index(name) != number for number, name in enumerate(before) if name in now):
        parts.append("workers have other numbers than before, and keep their clocks")
    if new:
        parts.append(f"new, at clock 0: {', '.join(new)}")
    if gone:
        parts.append(f"had left, and are not named any more: {', '.join(gone)}")
    return "; ".join(parts)
