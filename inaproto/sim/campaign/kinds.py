"""Kinds of worlds that a campaign can draw: by name, what draws them and which they are."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto.faults.streams import Seed
from inaproto.sim.frames.draw.machines import draw_machines
from inaproto.sim.frames.draw.pauses import with_pauses
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.recovering import draw_recovery
from inaproto.sim.frames.draw.routers import with_routers
from inaproto.sim.frames.draw.shared import draw_shared
from inaproto.sim.frames.draw.successors import draw_successors
from inaproto.sim.frames.draw.swarm import FaultKind, WorldConfig, draw_world


class WorldKind(StrEnum):
    SINGLE = "single"
    """One switch and all hosts at it."""
    RACKS = "racks"
    """Several switches; in most worlds jobs go on when a ring ends."""
    RECOVERY = "recovery"
    """One switch, where jobs go on when a ring ends."""
    MACHINES = "machines"
    """Hosts with several ranks of a job; one switch or several, with jobs that go on or not."""
    SHARED = "shared"
    """Jobs with two rings at once, each all-reduce by one of them; anything else as in the other worlds."""
    SUCCESSORS = "successors"
    """Host daemons die and are followed by others, under processes that go on; anything else as elsewhere."""
    CONTROL = "control"
    """No frames: who may use the switches when (:mod:`inaproto.sim.control`)."""
    WEATHER = "weather"
    """No frames: a virtual day of a cluster, and its weather (:mod:`inaproto.sim.control.day`)."""
    TREES = "trees"
    """No frames: trees that move under jobs (:mod:`inaproto.sim.trees`)."""
    OVERLAY = "overlay"
    """No frames: push, pull and clock over trees of hosts (:mod:`inaproto.sim.models`)."""


WORD_KINDS: Final = (WorldKind.CONTROL, WorldKind.WEATHER, WorldKind.TREES, WorldKind.OVERLAY)
"""Those whose subject is what nodes say."""
FRAME_KINDS: Final = tuple(kind for kind in WorldKind if kind not in WORD_KINDS)
"""Those of hosts, links and switches that carry frames."""


_DRAWN_BY: Final = {
    WorldKind.SINGLE: draw_world,
    WorldKind.RACKS: draw_racks,
    WorldKind.RECOVERY: draw_recovery,
    WorldKind.MACHINES: draw_machines,
    WorldKind.SHARED: draw_shared,
    WorldKind.SUCCESSORS: draw_successors,
}


def draw_kind(seed: Seed, kind: WorldKind) -> WorldConfig:
    """The world of ``seed``, of one of ``FRAME_KINDS``."""
    draw = _DRAWN_BY.get(kind)
    if draw is None:
        raise LocalMisuse("draw_kind: worlds of frames; draw_any draws all")
    return with_routers(with_pauses(draw(seed)))


def kind_of(config: WorldConfig) -> WorldKind:
    if any(fault.kind is FaultKind.DAEMON_CRASH for fault in config.faults):
        return WorldKind.SUCCESSORS
    if any(job.path == "shared" for job in config.jobs):
        return WorldKind.SHARED
    if any(len(job.positions) < len(job.hosts) for job in config.jobs):
        return WorldKind.MACHINES
    if config.topology is not None:
        return WorldKind.RACKS
    return WorldKind.RECOVERY if config.recover_ns else WorldKind.SINGLE
