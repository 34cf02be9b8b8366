"""What a wrong sum was added up from, for whoever reads a counterexample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from inaproto.sim.explore.ring.config import MTU, RingWorldConfig
from inaproto.wire.ina_header import INA_HEADER_BYTES

_TRIES_MAX: Final = 50_000


def made_of(config: RingWorldConfig, message: int, content: bytes) -> str:
    """``" (rank 0's message 2 + rank 1's message 0)"``, of the first packet that is wrong; "" if unknown."""
    for packet in range(config.length):
        begin = packet * MTU - INA_HEADER_BYTES if packet else 0
        piece = content[begin : (packet + 1) * MTU - INA_HEADER_BYTES]
        right = _piece(config, config.expected, message, begin, len(piece))
        if piece == right:
            continue
        within = f"in packet {packet}, " if config.length > 1 else ""
        for parts in _choices(config, message):
            if _sum(config, parts, begin, len(piece)) == piece:
                told = [
                    f"rank {rank}'s message {part}" if part >= 0 else f"nothing of rank {rank}"
                    for rank, part in enumerate(parts)
                ]
                return f" ({within}{' + '.join(told)})"
        return ""
    return ""


def _choices(config: RingWorldConfig, message: int) -> Iterator[tuple[int, ...]]:
    """For each rank a message near ``message``, or -1 for nothing; the nearest first."""
    reach = 2 * config.window
    near = sorted(
        range(max(0, message - reach), min(config.messages, message + reach + 1)),
        key=lambda other: abs(other - message),
    )
    choices = itertools.product([*near, -1], repeat=config.ranks)
    return itertools.islice(choices, _TRIES_MAX)


def _sum(config: RingWorldConfig, parts: tuple[int, ...], begin: int, nbytes: int) -> bytes:
    total = np.zeros(nbytes // 4, np.uint32)
    for rank, part in enumerate(parts):
        if part >= 0:
            values = np.frombuffer(_piece(config, config.inputs[rank], part, begin, nbytes), "<u4")
            total[: len(values)] += values
    return total.tobytes()


def _piece(config: RingWorldConfig, whole: bytes, message: int, begin: int, nbytes: int) -> bytes:
    at = message * config.tensor_bytes
    return whole[at : at + config.tensor_bytes][begin : begin + nbytes]
