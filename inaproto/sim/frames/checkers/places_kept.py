"""A host attaches to its collective library with a place alone, and holds a place until it has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.core.rendezvous.rules import job_name
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.library import TERMS
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS

if TYPE_CHECKING:
    from inaproto.core.grants.places import Attaching
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.host.ring import HostRing
    from inaproto.sim.frames.places import Wishes
    from inaproto.sim.frames.world import World


DONE_MAX: Final = 8
"""So many all-reduces that the library takes may end at a host that is to leave: all leave with one."""
LEAVES_NS: Final = 5 * MS
"""More than it takes to give an attachment back."""


class PlacesKept(Checker):
    name = "places are kept"

    def begin(self, world: World) -> None:
        self._world = world
        self._newest: dict[int, Wishes] = {}
        """By host: what it was told, as the protocol has it."""
        self._owed: dict[Attaching, list[int]] = {}
        """When there were results since an attachment's job had a place last."""
        self._attached: dict[int, dict[Attaching, set[int]]] = {}
        """Attachments by host, with all places that their jobs have had since they were asked for."""

    def _places(self, host: int) -> dict[int, str]:
        wishes = self._newest.get(host)
        return {} if wishes is None else {one.grant: one.name for one in wishes.grants if one.kind == "place"}

    def wished(self, host: SimHost, wishes: Wishes) -> None:
        known = self._newest.get(host.number)
        if known is None or (wishes.term, wishes.revision) >= (known.term, known.revision):
            self._newest[host.number] = wishes
            self._owed = {one: at for one, at in self._owed.items() if not self._of(host, one)}
            for attaching, held in self._attached.get(host.number, {}).items():
                held |= self._of(host, attaching)
        self._look_at(host)

    def _of(self, host: SimHost, attaching: Attaching) -> set[int]:
        return {number for number, job in self._places(host.number).items() if job == attaching.job}

    def attaches(self, ring: HostRing, attaching: Attaching) -> None:
        host = ring.host
        if host.number in self._newest and not self._of(host, attaching):
            raise Violated(self.name, f"{ring} attaches, and has no place")
        self._attached.setdefault(host.number, {})[attaching] = self._of(host, attaching)
        self._look_at(host)

    def detached(self, ring: HostRing, attaching: Attaching) -> None:
        del self._attached[ring.host.number][attaching]
        self._look_at(ring.host)

    def done(self, rank: SimRank, op_index: int) -> None:
        host = rank.ring.host
        if host.number not in self._newest or len(rank.tensor(op_index)) < TERMS.bytes_min:
            return  # it has heard of no places; or what the library does not take: nobody leaves with that
        for attaching in self._attached.get(host.number, {}):
            if attaching.job != job_name(rank.job.name).job or self._of(host, attaching):
                continue
            owed = self._owed.setdefault(attaching, [])
            owed.append(self._world.agenda.now)
            most = DONE_MAX * len(rank.ring.ranks)
            if len(owed) > most and owed[-1] - owed[most - 1] > LEAVES_NS:
                raise Violated(self.name, f"{rank} goes on, and is attached without a place")

    def places_forgotten(self, host: SimHost) -> None:
        self._newest.pop(host.number, None)
        self._attached.pop(host.number, None)

    def _look_at(self, host: SimHost) -> None:
        expected = set(self._places(host.number)).union(*self._attached.get(host.number, {}).values())
        held = {hold.grant for hold in self._world.places.hosts[host.number].places.holds()}
        if held != expected:
            raise Violated(
                self.name, f"{host} says that it holds the places {sorted(held)}, not {sorted(expected)}"
            )

    def end(self, world: World) -> None:
        for attached in self._attached.values():
            for attaching in attached:
                raise Violated(self.name, f"job {attaching.job} has ended, and is attached at a host")
