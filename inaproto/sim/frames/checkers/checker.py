"""What a checker is: it sees all nodes of a world, takes no part, and says when a rule is broken.

A checker overrides the hooks that it needs; a world calls no others. Every checker keeps its own
account of what happened, from facts that several nodes show, and never asks a core whether it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from inaproto.errors import DecodeError
from inaproto.wire.icrc import verify

if TYPE_CHECKING:
    from inaproto.core.grants.places import Attaching
    from inaproto.core.switch.ring_spec import RingSpec
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.elastic_ring import ElasticRing
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.host.ring import HostRing
    from inaproto.sim.frames.places import Wishes
    from inaproto.sim.frames.seats import SeatedJob
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World
    from inaproto.units import Frames, PortId
    from inaproto.wire.control_messages import Message
    from inaproto.wire.messages.controller import HoldRecord


def is_intact(frame: bytes) -> bool:
    """Whether it is a RoCE packet with the right ICRC."""
    try:
        return verify(frame)
    except DecodeError:
        return False


def each_frame(block: Frames) -> list[bytes]:
    """The frames of a block; a row of one that is alone is not cut out first."""
    return [block.tobytes()] if len(block) == 1 else [row.tobytes() for row in block]


class Checker:
    """Hooks, each called right after the fact; raise :class:`Violated` from any of them."""

    name: ClassVar[str] = ""

    def begin(self, world: World) -> None:
        """Before anything happens."""

    def submitted(self, rank: SimRank, op_index: int) -> None:
        """A rank called an all-reduce."""

    def posted(self, ring: HostRing, msg_id: int) -> None:
        """A host handed a message to its NIC."""

    def received(self, ring: HostRing, msg_id: int) -> None:
        """A message is here whole; the host has not looked at it yet."""

    def taken(self, rank: SimRank, slot: int, op_index: int, offset: int, nbytes: int) -> None:
        """A result of receive slot ``slot`` is in the rank's tensor; -1: a sum of one host alone."""

    def done(self, rank: SimRank, op_index: int) -> None:
        """A rank was told that its all-reduce has its result, which lies in ``rank.tensor(op_index)``."""

    def failed(self, rank: SimRank, op_index: int, code: str) -> None:
        """A rank was told that its all-reduce failed."""

    def died(self, rank: SimRank) -> None:
        """The rank's process or host is gone; it can be told nothing any more."""

    def left(self, rank: SimRank, operations: int) -> None:
        """A rank that has called so many all-reduces leaves in good order."""

    def closed(self, rank: SimRank) -> None:
        """A rank that left is told that all have."""

    def wished(self, host: SimHost, wishes: Wishes) -> None:
        """A host's daemon has heard of a controller's wishes for places, and has done what follows."""

    def attaches(self, ring: HostRing, attaching: Attaching) -> None:
        """A host asks for an attachment to its collective library, where a controller gives places in it."""

    def detached(self, ring: HostRing, attaching: Attaching) -> None:
        """It is given back, or was never had."""

    def places_forgotten(self, host: SimHost) -> None:
        """The host's daemon has ended, and all that it was attached to with it."""

    def process_changed(self, process: ElasticProcess) -> None:
        """A process of an elastic job has begun, or has come to its end."""

    def seats_reported(self, host: SimHost, holds: Mapping[int, HoldRecord]) -> None:
        """What a host says of its seats leaves it."""

    def seats_forgotten(self, host: SimHost) -> None:
        """The host's daemon has ended, and all that it knew of its seats."""

    def job_over(self, job: SeatedJob) -> None:
        """A controller takes an elastic job for over."""

    def nobody_goes_on(self, job: SeatedJob) -> None:
        """All its processes have ended, and it is to be started anew."""

    def nic_received(self, host: SimHost, blocks: list[Frames]) -> None:
        """A host's NIC is about to take these frames in."""

    def nic_sent(self, host: SimHost, frames: Frames) -> None:
        """A host's NIC has these frames leave."""

    def told(self, host: SimHost, message: Message) -> None:
        """The control plane sends a host that."""

    def regroups(self, process: ElasticProcess) -> None:
        """A survivor asks who goes on; also again, by another connection of its host."""

    def began(self, ring: ElasticRing) -> None:
        """A job that is elastic, or follows one, has begun on a host."""

    def gave_up(self, process: ElasticProcess, code: str) -> None:
        """A process of an elastic job was told that it cannot go on, or waited too long."""

    def ring_installed(self, switch: SimSwitch, spec: RingSpec) -> None:
        """Just before its accelerator is told."""

    def ring_removed(self, switch: SimSwitch, ring_id: int) -> None: ...

    def switch_rebooted(self, switch: SimSwitch) -> None: ...

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        """Just before the accelerator takes them in."""

    def switch_sent(self, switch: SimSwitch, port: PortId, frames: Frames) -> None:
        """For each action of the accelerator that sends frames, in order."""

    def switch_stepped(self, switch: SimSwitch) -> None:
        """After all actions of the accelerator for what it received."""

    def sample(self, world: World) -> None:
        """Now and then, between two events."""

    def end(self, world: World) -> None:
        """All jobs are finished and nothing is under way any more."""
