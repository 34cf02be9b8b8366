"""What checkers, and the rest of the world, may ask of the ranks of a job on a simulated host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_tree import OverlayEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.host.holdings import Holdings
from inaproto.core.host.job import HostJob
from inaproto.core.host.link import Link
from inaproto.core.host.operations import BASE, BoundPath
from inaproto.core.host.rings import Engine
from inaproto.core.host.view import Phase
from inaproto.sim.frames.draw.swarm import JobConfig

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.rank import SimRank


_OF_HOSTS: Final = (ChainEngine, RingAllReduceEngine, OverlayEngine)


class RingFacts:
    """Nothing here changes anything."""

    host: SimHost
    job: JobConfig
    ranks: list[SimRank]
    """In their order."""
    core: HostJob
    """Of the present life, or, before its first rank joins, of the next."""
    holdings: Holdings
    is_finished: bool
    was_among_hosts: bool
    """The hosts summed in its ring before the present one."""
    acting: BoundPath
    """On which of two rings it does or meets what checkers are told of just now."""

    def __str__(self) -> str:
        return f"{self.label} of {self.job.name} on {self.host.name}"

    @property
    def label(self) -> str:
        """Its ranks."""
        numbers = ", ".join(str(rank.index) for rank in self.ranks)
        return f"rank {numbers}" if len(self.ranks) == 1 else f"ranks {numbers}"

    @property
    def is_idle(self) -> bool:
        """No rank has joined since the host, or the last life, came to its end."""
        return not len(self.core.ranks)

    @property
    def state(self) -> str:
        """For people."""
        return self.core.phase.value if not self.is_idle else "finished" if self.is_finished else "idle"

    def origin_of(self, op_index: int) -> tuple[str, int]:
        """The job as the world's configuration has it, and which of its all-reduces this is."""
        return self.job.name, op_index

    @property
    def phase(self) -> Phase | None:
        return None if self.is_idle else self.core.phase

    @property
    def engine(self) -> Engine | None:
        return self.core.engine

    @property
    def has_started(self) -> bool:
        return self.core.has_started

    @property
    def is_gathering(self) -> bool:
        """It has no ring yet: another rank may join."""
        return self.core.is_gathering and not (self.is_idle and self.is_finished)

    @property
    def is_unneeded(self) -> bool:
        """Its ranks are in no ring: if others have finished the job, they have nothing to do."""
        return self.core.phase is Phase.JOINING and not (self.is_idle and self.is_finished)

    @property
    def ring_id(self) -> int:
        return self.core.ring_id or 0

    @property
    def ina_ring_id(self) -> int:
        return 0 if self.core.ring is None else self.core.ring.ina_ring_id

    @property
    def sums_itself(self) -> bool:
        """Whether its present ring is summed by the hosts."""
        return isinstance(self.core.engine, _OF_HOSTS)

    @property
    def adds_itself(self) -> bool:
        """Whether the hosts sum what it acts on."""
        return self.sums_itself or (isinstance(self.engine, TwoPaths) and self.acting == BASE)

    @property
    def acts_on(self) -> int:
        """The ring that it acts on."""
        return self.ring_id if self.acting == BASE else self.ina_ring_id

    @property
    def is_rotated(self) -> bool:
        """Whether hosts sum, and each message begins at the next host."""
        return isinstance(self.engine, RingAllReduceEngine)

    @property
    def waits_here(self) -> bool:
        return self.core.waits_here

    @property
    def links(self) -> list[Link]:
        """Those that it holds: the base ring's first."""
        return list(self.holdings.links.values())

    @property
    def holds_queue_pairs(self) -> bool:
        return bool(self.links)
