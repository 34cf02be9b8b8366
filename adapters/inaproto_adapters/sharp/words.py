"""What the ranks of an attachment say to each other in one round beside the fabric.

A round is one ``all_gather``; each message says what its rank is about. When all are about the same the round
is what it was meant for. When some vote with a failure while others are in a callback of the library, the
round is the end of the call for all of them. Anything else is an error at every rank, the same one: all see
the same messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from inaproto.core.collective.events import FINE, Outcome, PeerFailed, Weight
from inaproto.errors import FabricError
from inaproto_adapters.sharp.codes import outcome_of

_HEAD: Final = struct.Struct("<BBhI")
CODE_MAX: Final = (1 << 15) - 1
"""The interface has none beyond; a code that is has no place in a vote, and is told in words alone."""
WORDS_BYTES_MAX: Final = (1 << 16) - 256
"""Most that a callback may ask to be exchanged, with one rank's part."""


class About(IntEnum):
    """What a message is about."""

    AGREE = 1
    VOTE = 2
    GATHER = 3
    BCAST = 4
    BARRIER = 5


@dataclass(frozen=True, slots=True)
class Said:
    """A rank's message of a round. ``mark``: which call is voted on, or the root of a callback."""

    about: About
    mark: int
    data: bytes = b""
    outcome: Outcome = FINE

    def pack(self) -> bytes:
        """On the way to the other ranks."""
        code = self.outcome.code if abs(self.outcome.code) <= CODE_MAX else 0
        head = _HEAD.pack(self.about, self.outcome.weight, code, self.mark)
        return head + (self.outcome.why.encode()[:200] if self.about is About.VOTE else self.data)


def unpack(data: bytes) -> Said:
    """Raises ``FabricError`` for what no rank of this release says."""
    try:
        about, weight, code, mark = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
        if About(about) is not About.VOTE:
            return Said(About(about), mark, rest)
        outcome = Outcome(code, Weight(weight), rest.decode(errors="replace")) if weight else FINE
        return Said(About.VOTE, mark, outcome=outcome)
    except (struct.error, ValueError) as error:
        raise _odd(f"a message that is none ({error})") from None


def concluded(own: Said, said: Sequence[Said]) -> PeerFailed | None:
    """What the round was, for a rank that said ``own``: None, if all were about the same.

    Raises ``FabricError`` where the ranks do not follow each other, which is a fault of the library or ours.
    """
    if all((its.about, its.mark) == (own.about, own.mark) for its in said):
        return None
    failed = [(rank, its.outcome) for rank, its in enumerate(said) if its.outcome.weight]
    if failed:
        rank, outcome = max(failed, key=lambda its: its[1].weight)
        return PeerFailed(rank, Outcome(outcome.code, outcome.weight, f"rank {rank}: {outcome.why}"))
    words = ", ".join(f"rank {rank} {its.about.name.lower()}" for rank, its in enumerate(said))
    raise _odd(f"the ranks are not at the same point ({words})")


def oob_failure(why: str) -> Outcome:
    """The outcome of a call whose callback failed for that reason."""
    return outcome_of(-15, why)


def _odd(cause: str) -> FabricError:
    return FabricError("SHARP", "the job's other hosts", "talking out of band", cause, retryable=False)
