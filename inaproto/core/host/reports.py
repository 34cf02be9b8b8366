"""What a host tells the switch of its rings: that they are halted, broken, or parked.

One of its ranks, the lowest, speaks for all of them.
"""

from __future__ import annotations

from inaproto.core.host.events import LinksOpened
from inaproto.core.host.ranks import REASON_CHARACTERS_MAX, HostedRanks
from inaproto.wire.control_messages import Broken, Halted
from inaproto.wire.messages.ina import InaPark, InaParked


def halted(job: str, ranks: HostedRanks, *, ring_id: int, progress: int, links: LinksOpened) -> Halted:
    """The ring has ended here after ``progress`` results; ``links`` are there for the next."""
    ina = links.ina
    return Halted(
        job=job,
        rank=ranks.lowest,
        ring_id=ring_id,
        progress=progress,
        out=links.base.out,
        into=links.base.into,
        ina_out=None if ina is None else ina.out,
        ina_into=None if ina is None else ina.into,
        below=links.base.below,
    )


def broken(
    job: str, ranks: HostedRanks, *, ring_id: int, progress: int, reason: str, differs: bool
) -> Broken:
    """The ring cannot go on here; ``reason`` is cut to what a message may hold. ``differs``: because ranks
    call different all-reduces."""
    text, rank = reason[:REASON_CHARACTERS_MAX], ranks.lowest
    return Broken(job=job, rank=rank, ring_id=ring_id, progress=progress, reason=text, differs=differs)


def parked(job: str, ranks: HostedRanks, park: InaPark, *, messages: int) -> InaParked:
    """Nothing of the ring in the switches is under way; ``messages`` went by it."""
    return InaParked(job=job, rank=ranks.lowest, ring_id=park.ring_id, epoch=park.epoch, messages=messages)
