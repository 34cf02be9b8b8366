"""What a world of trees is and what befalls it: everything that a run depends on, but for recorded fates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from inaproto.errors import ConfigError
from inaproto.sim.kernel.config import TimedFault, WordsConfig
from inaproto.units import MS
from inaproto.wire.messages.trees import FabricTree


class FaultKind(StrEnum):
    CONTROLLER_CRASH = "controller crash"
    """It loses all but what its store has on disk, and leads again ``duration_ns`` later."""
    SWITCH_RESTART = "switch restart"
    """Switch ``target`` loses its slots and its rings, and is back ``duration_ns`` later. The first one is
    the root: it forgets jobs and wishes as well, and jobs come to it anew."""
    SWITCH_STANDS_STILL = "switch stands still"
    """As a machine does that is suspended: for ``duration_ns`` nothing happens there, and its clock goes
    on."""
    PARTITION = "partition"
    """Switch ``target`` has no session with the controller for so long."""
    RESET = "session reset"
    """The session of switch ``target`` breaks; it has another one as soon as it can."""
    JOB_AWAY = "job away"
    """A host of job ``target`` is lost: its rings end, and for so long the root says nothing of it."""
    CHANGE_OF_MIND = "change of mind"
    """A person wants job ``target`` at another of its roots, whichever that is by the same number."""
    BURST = "burst"
    """All messages have the weather ``weather``."""


@dataclass(frozen=True, slots=True)
class TreesFault(TimedFault):
    kind: FaultKind


@dataclass(frozen=True, slots=True)
class TreesJob:
    name: str
    trees: tuple[int, ...]
    """On which its ring can be; the first is the fabric's own, of the root."""
    arrives_ns: int
    ends_ns: int = -1
    """-1: not before the world does."""


@dataclass(frozen=True, slots=True)
class Want:
    """At ``at_ns`` a person wants the job to be summed at the root of a tree; -1: anywhere."""

    at_ns: int
    job: int
    tree: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Until ``until_ns`` the fabric can lay no ring of the job on the tree."""

    job: int
    tree: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreesConfig(WordsConfig):
    """A frame that the weather drops breaks its session; what overtakes others waits for them."""

    called: ClassVar[str] = "world of trees"

    slots: tuple[int, ...]
    """Slots of each switch; the first one is the fabric's root."""
    trees: tuple[tuple[int, ...], ...]
    """Switches of each tree, its root first, no two trees with the same root; the first tree is the fabric's
    own."""
    jobs: tuple[TreesJob, ...]
    wants: tuple[Want, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    faults: tuple[TreesFault, ...] = ()
    redial_ns: int = 5 * MS
    silent_ns: int = 100 * MS
    """After which an end that has heard nothing gives its session up."""
    page: int = 2
    """Jobs in one message, at most."""
    park_ns: int = 10 * MS
    """Until the hosts of a ring have nothing on its way, at most."""
    lay_ns: int = 3 * MS
    """Until all switches have a ring that they are to get, at most."""
    generation_ns: int = 20 * MS
    """Until a job's hosts are together again after its rings have ended, at most."""
    switch_resend_ns: int = 5 * MS
    tries_max: int = 20
    audit_ns: int = 100 * MS
    backoff_ns: int = 2 * MS
    look_ns: int = 20 * MS
    resend_ns: int = 50 * MS
    bar_ns: int = 20 * MS
    bar_max_ns: int = 500 * MS
    absent_ns: int = 400 * MS
    slot_lease_ns: int = 200 * MS

    def __post_init__(self) -> None:
        WordsConfig.__post_init__(self)
        if not self.trees or any(not tree or len(set(tree)) < len(tree) for tree in self.trees):
            raise ConfigError("world of trees: each tree has switches, and each of them once")
        if self.trees[0][0] != 0 or len({tree[0] for tree in self.trees}) < len(self.trees):
            raise ConfigError("world of trees: the first tree is that of the root, and all have other roots")
        if any(not 0 <= at < len(self.slots) for tree in self.trees for at in tree):
            raise ConfigError(f"world of trees: a tree has a switch beyond the {len(self.slots)} there are")
        for job in self.jobs:
            if not job.trees or any(not 0 <= tree < len(self.trees) for tree in job.trees):
                raise ConfigError(f"world of trees: job {job.name}: it has trees, of {len(self.trees)}")
        for want in self.wants:
            if not 0 <= want.job < len(self.jobs) or not -1 <= want.tree < len(self.trees):
                raise ConfigError(f"world of trees: {want}: there is no such job, or tree")

    def fabric_tree(self, tree: int) -> FabricTree:
        root, *others = (switch_name(at) for at in self.trees[tree])
        return FabricTree(root, tuple(sorted((other, root) for other in others)))


def switch_name(at: int) -> str:
    return f"switch{at}"
