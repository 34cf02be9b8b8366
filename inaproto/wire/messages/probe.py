"""Control messages by which the links between hosts are measured
(:mod:`inaproto.core.rendezvous.link_measures`).

switch -> host daemon: LinkProbe. host daemon -> host daemon, through the control plane of their switches:
LinkProbeWord. host daemon -> switch: LinkProbed. All of them may be lost: a link is then not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from inaproto.wire.messages.fields import Integer, OneOf
from inaproto.wire.messages.infiniband import InfinibandField
from inaproto.wire.messages.types import U24, U32, U64, Explanation, Ip, Mac, Message, Name

PROBE_BYTES_MAX: Final = 8 << 20
_Kind = Annotated[Literal["offer", "answer", "end"], OneOf(("offer", "answer", "end"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe(Message, type="link_probe"):
    """Measure the link to ``peer``: how long a small write takes there, and how long ``nbytes``."""

    peer: Name
    nbytes: Annotated[int, Integer(1, PROBE_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbeWord(Message, type="link_probe_word"):
    """Tells, of the probe ``id``, the queue pair and, in an answer, the memory to write to; or why there is
    none."""

    kind: _Kind
    why: Explanation = ""
    mac: Mac = bytes(6)
    ip: Ip = bytes(4)
    qpn: U24 = 0
    psn: U24 = 0
    va: U64 = 0
    rkey: U32 = 0
    infiniband: InfinibandField | None = None
    nbytes: Annotated[int, Integer(0, PROBE_BYTES_MAX)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbed(Message, type="link_probed"):
    """Result of the probe ``id``; rate 0: it could not be measured, ``why`` says the reason."""

    latency_ns: U64
    rate_bps: U64
    why: Explanation = ""
