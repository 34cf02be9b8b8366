"""Orders about rings, and what an accelerator says of them, as control messages between processes."""

from __future__ import annotations

from collections.abc import Callable

from inaproto.core.rendezvous.fabric.events import Installed
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.daemon.switch.ring_records import ring_of
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.switch import (
    InstallRefused,
    RingFaulted,
    RingInstall,
    RingInstalled,
    RingRemove,
)


def carry_out(
    message: RingInstall | RingRemove,
    ordered: Callable[[InstallRing | RemoveRing], bool],
    tell: Callable[[Message], None],
) -> None:
    """Have the accelerator do it. ``ordered``: whether it did not refuse, which it says by itself."""
    match message:
        case RingInstall(ring_id=ring_id):
            try:
                order = InstallRing(ring_of(message))
            except LocalMisuse as error:
                tell(InstallRefused(ring_id=ring_id, reason=str(error)))
                return
            if ordered(order):
                tell(RingInstalled(ring_id=ring_id))
        case RingRemove(ring_id=ring_id):
            ordered(RemoveRing(ring_id))


def message_of(said: RingFault | RingRefused) -> Message:
    """What an accelerator says of a ring, for the control plane."""
    match said:
        case RingFault(ring_id, rank, rule, evidence):
            return RingFaulted(ring_id=ring_id, rank=rank, rule=rule, evidence=evidence)
        case RingRefused(ring_id, reason, until_switch=until_switch):
            return InstallRefused(ring_id=ring_id, reason=reason, until_switch=until_switch)


def said_by(
    switch: str, message: RingInstalled | InstallRefused | RingFaulted
) -> Installed | RingFault | RingRefused:
    """What the control plane hears of a ring."""
    match message:
        case RingInstalled(ring_id=ring_id):
            return Installed(switch, ring_id)
        case InstallRefused(ring_id=ring_id, reason=reason, until_switch=until_switch):
            return RingRefused(ring_id, reason, until_switch=until_switch)
        case RingFaulted(ring_id=ring_id, rank=rank, rule=rule, evidence=evidence):
            return RingFault(ring_id, rank, rule, evidence)
