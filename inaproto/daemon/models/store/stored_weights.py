"""The weights of a model from the stores of its servers, for reading alone: at rest, or of servers that run.

A store says itself what it is, so no models file is needed. Nothing is locked and nothing written: of a
server that runs the last whole entry counts, and where it makes a new snapshot meanwhile its files are read
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from inaproto.core.models.fixed_point import dequantised
from inaproto.daemon.models.shard_records import change_in, state_in
from inaproto.daemon.models.store.durable_log import read_store
from inaproto.errors import ConfigError, DecodeError
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import NAMED, REMOVED
from inaproto.wire.messages.models import ShardState

_TRIES: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Weights of one store."""

    directory: Path
    state: ShardState
    clocks: dict[int, int]
    weights: Numbers
    """Weights in the model's dtype; with fixed point integers."""

    def told(self) -> dict[str, Any]:
        """For people and programs."""
        names = self.state.workers
        return {
            "store": str(self.directory),
            "part": self.state.shard,
            "first": self.state.first,
            "elements": self.state.elements,
            "clocks": {
                names[worker] if worker < len(names) else str(worker): NAMED.get(clock, clock)
                for worker, clock in sorted(self.clocks.items())
            },
        }


def find_stores(directory: Path, model: str) -> list[Path]:
    """Those of ``model`` below a run directory, or a directory of stores."""
    found = [*directory.glob("*.store/*"), *directory.glob("*")]
    return sorted(path for path in found if path.is_dir() and path.name.rpartition("-")[0] == model)


def read_part(directory: Path) -> Part:
    """Raises ``ConfigError``."""
    for left in reversed(range(_TRIES)):
        try:
            found = read_store(directory)
            if found.snapshot is None:
                raise DecodeError("store", "there is no snapshot in it")
            state = state_in(found.snapshot)
            weights = _elements(state.weights, state)
            clocks = state.clocks
            for change in map(change_in, found.changes):
                clocks = clocks.with_(change.clocks)
                if change.delta is not None:
                    weights = weights + _elements(change.delta, state)
        except FileNotFoundError:  # a new snapshot has taken their place
            if not left:
                raise ConfigError(
                    f"store: {directory}: there is no such store, or it does not rest"
                ) from None
        except (OSError, DecodeError) as error:
            text = error.strerror if isinstance(error, OSError) else error.reason
            raise ConfigError(f"store: {directory}: {text}") from None
        else:
            return Part(directory, state, {w: min(clock, REMOVED) for w, clock in clocks.items()}, weights)
    raise AssertionError("the last try has ended")


def whole(parts: Sequence[Part]) -> Numbers:
    """What workers would pull: with fixed point float64. Raises ``ConfigError`` if parts are missing, or are
    not of one model."""
    states = sorted((part.state for part in parts), key=lambda state: state.first)
    kinds = {(s.model, s.dtype, s.fraction_bits, s.shards, s.model_elements) for s in states}
    if len(kinds) > 1:
        raise ConfigError(f"weights: the stores are not of one model: {', '.join(map(str, sorted(kinds)))}")
    missing = sorted(set(range(states[0].shards)) - {state.shard for state in states})
    if missing or len(states) != states[0].shards:
        raise ConfigError(
            f"weights: {len(states)} stores of the {states[0].shards} parts of model {states[0].model!r} are "
            f"here{_list(missing)}; name all with --store, or take what is here with --parts"
        )
    in_order = sorted(parts, key=lambda part: part.state.first)
    weights = np.concatenate([part.weights for part in in_order])
    bits = states[0].fraction_bits
    return weights if bits is None else dequantised(weights, bits)


def same_clocks(parts: Iterable[Part]) -> bool:
    """Whether all parts have the same updates of everybody."""
    return len({tuple(sorted(part.clocks.items())) for part in parts}) == 1


def _list(missing: Sequence[int]) -> str:
    return f", without part {', '.join(map(str, missing))}" if missing else ""


def _elements(array: Numbers, state: ShardState) -> Numbers:
    dtype = np.dtype(state.dtype)
    if array.nbytes != state.elements * dtype.itemsize:
        raise DecodeError("store", f"{array.nbytes} bytes, not {state.elements} of {dtype}")
    return array.view(dtype)
