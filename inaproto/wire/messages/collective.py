"""What hosts of a job say to each other while they attach to a collective library (docs/protocol.md 9.8).

host daemon -> host daemons, through the control plane of their switches: CollectiveWord.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from inaproto.wire.messages.fields import Blob
from inaproto.wire.messages.types import U16, U32, Explanation, Message, Name

DATA_BYTES_MAX: Final = 1 << 16
LAST: Final = 0xFFFF
"""The round of a host's last word in an attempt: it is attached, or has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWord(Message, type="collective_word"):
    """What ``host`` says in a round of an attempt; all other hosts of the job hear it."""

    job: Name
    host: Name
    attempt: U32
    round: U16
    data: Annotated[bytes, Blob(DATA_BYTES_MAX)] = b""
    failed: Explanation = ""
    """In its last word: why it is not attached; empty: it is."""
