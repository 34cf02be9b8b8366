"""Which checkers are told of what: a world calls no hook that none of them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from inaproto.sim.frames.checkers.checker import Checker

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
    from inaproto.units import Frames
    from inaproto.wire.control_messages import Message
    from inaproto.wire.messages.controller import HoldRecord


@dataclass(slots=True)
class Hooks:
    """For each hook, the checkers that have it."""

    submitted: list[Callable[[SimRank, int], None]] = field(default_factory=list)
    posted: list[Callable[[HostRing, int], None]] = field(default_factory=list)
    received: list[Callable[[HostRing, int], None]] = field(default_factory=list)
    taken: list[Callable[[SimRank, int, int, int, int], None]] = field(default_factory=list)
    done: list[Callable[[SimRank, int], None]] = field(default_factory=list)
    failed: list[Callable[[SimRank, int, str], None]] = field(default_factory=list)
    died: list[Callable[[SimRank], None]] = field(default_factory=list)
    left: list[Callable[[SimRank, int], None]] = field(default_factory=list)
    closed: list[Callable[[SimRank], None]] = field(default_factory=list)
    told: list[Callable[[SimHost, Message], None]] = field(default_factory=list)
    regroups: list[Callable[[ElasticProcess], None]] = field(default_factory=list)
    began: list[Callable[[ElasticRing], None]] = field(default_factory=list)
    gave_up: list[Callable[[ElasticProcess, str], None]] = field(default_factory=list)
    ring_installed: list[Callable[[SimSwitch, RingSpec], None]] = field(default_factory=list)
    ring_removed: list[Callable[[SimSwitch, int], None]] = field(default_factory=list)
    switch_rebooted: list[Callable[[SimSwitch], None]] = field(default_factory=list)
    switch_received: list[Callable[[SimSwitch, Any, list[Frames]], None]] = field(default_factory=list)
    switch_sent: list[Callable[[SimSwitch, Any, Frames], None]] = field(default_factory=list)
    switch_stepped: list[Callable[[SimSwitch], None]] = field(default_factory=list)
    wished: list[Callable[[SimHost, Wishes], None]] = field(default_factory=list)
    attaches: list[Callable[[HostRing, Attaching], None]] = field(default_factory=list)
    detached: list[Callable[[HostRing, Attaching], None]] = field(default_factory=list)
    places_forgotten: list[Callable[[SimHost], None]] = field(default_factory=list)
    process_changed: list[Callable[[ElasticProcess], None]] = field(default_factory=list)
    seats_reported: list[Callable[[SimHost, Mapping[int, HoldRecord]], None]] = field(default_factory=list)
    seats_forgotten: list[Callable[[SimHost], None]] = field(default_factory=list)
    job_over: list[Callable[[SeatedJob], None]] = field(default_factory=list)
    nobody_goes_on: list[Callable[[SeatedJob], None]] = field(default_factory=list)
    nic_received: list[Callable[[SimHost, list[Frames]], None]] = field(default_factory=list)
    nic_sent: list[Callable[[SimHost, Frames], None]] = field(default_factory=list)
    sample: list[Callable[[Any], None]] = field(default_factory=list)
    end: list[Callable[[Any], None]] = field(default_factory=list)

    @classmethod
    def of(cls, checkers: Sequence[Checker]) -> Hooks:
        hooks = cls()
        for item in fields(cls):
            for checker in checkers:
                if getattr(type(checker), item.name) is not getattr(Checker, item.name):
                    getattr(hooks, item.name).append(getattr(checker, item.name))
        return hooks
