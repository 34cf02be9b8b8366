"""Pools: aggregator memory that several rings share by turns (MINA sections III-C, III-D and IV-B).

A switch of the paper serves one INA job at a time. A pool is such a place: its rings are all installed, but
only the one whose *turn* it is has slots. Who has it is agreed elsewhere; a switch sees it in the packets.
The ``epoch`` in the INA header is the number of the turn and grows with every turn of the pool, so the switch
needs no message to change hands, and a ring whose turn is over cannot disturb the next:

- a message of a higher epoch than the pool has seen, which the ring may send now (the key is right, the
  message is inside the window), takes the slots; everything in them is forgotten, kept results too;
- a packet of a lower epoch is stale and dropped. Only late copies may come: a turn ends when every rank has
  its results and the acknowledgements of all that it sent;
- a takeover that finds messages of the old ring unfinished breaks that rule. The old ring is stopped, so no
  sum is ever made of, or sent under, anything but one turn's packets;
- ranks that send one message under different epochs are blamed, and the message waits.

In a tree every switch has pools of its own and sees turns begin in what comes up to it; that a message opens
at another leaf begins its turn, too. What comes down belongs to no message once its turn is over.

A ring counts its messages on from turn to turn, so the frontier of its last turn says which message begins
the next, whichever packet comes first; and PSNs of an old turn belong to no message of the new one. One that
had its last turn elsewhere, or here before it was removed, is told that message (``RingSpec.first_message``):
by it copies from before are stale, though a pool that loses its last ring forgets its turns.

A pool of capacity C is C such places. ``epoch mod C`` says which is a turn's: the same at every switch.

Invariants: slots belong to one ring, or to none; a ring has slots of one place at most; a pool takes memory
for C times the greatest need of its rings, however many they are.

Departure: the paper has no such token. Its switches are told when a job may use them, and trust it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inaproto.core.switch.aggregator import bytes_needed
from inaproto.core.switch.events import Counters, PoolView, RingState
from inaproto.core.switch.region import Region
from inaproto.core.switch.ring_spec import NO_TURN, RingSpec
from inaproto.errors import InvariantBroken
from inaproto.wire.messages.switch import PoolSpec

STALE: Final = "stale turn"
WRONG_EPOCH: Final = "wrong epoch"


class Refusal(NamedTuple):
    """Why a ring does not get slots; without ``evidence`` nobody is to blame."""

    rule: str
    evidence: str = ""


@dataclass(slots=True)
class _Place:
    """Slots for one ring."""

    epoch: int = NO_TURN
    """The highest one seen."""
    holder: RingState | None = None
    spare: Sequence[Region] = ()
    """Regions that no ring has now. They serve the next ring at once if it needs the same ones."""
    shape: Hashable = None
    """Shape of ``spare``, or of what the holder has."""
    nbytes: int = 0


@dataclass(slots=True)
class _Pool:
    spec: PoolSpec
    places: tuple[_Place, ...]
    needs: dict[int, int] = field(default_factory=dict)
    """Bytes that each ring's slots take."""
    takeovers: int = 0
    conflicts: int = 0
    stale: int = 0

    @property
    def nbytes(self) -> int:
        return self.spec.capacity * max(self.needs.values(), default=0)


class SlotPools:
    """All pools of one switch."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._pools: dict[str, _Pool] = {}

    def view(self) -> dict[str, PoolView]:
        return {
            name: PoolView(
                rings=tuple(pool.needs),
                capacity=pool.spec.capacity,
                memory_bytes=pool.nbytes,
                holders=tuple(
                    None if place.holder is None else place.holder.spec.ring_id for place in pool.places
                ),
                epochs=tuple(place.epoch for place in pool.places),
                takeovers=pool.takeovers,
                conflicts=pool.conflicts,
                stale=pool.stale,
            )
            for name, pool in self._pools.items()
        }

    # -- members -------------------------------------------------------------------------------

    def contradiction(self, spec: PoolSpec) -> str:
        """Why a ring that says this of its pool cannot be in it; empty if it can."""
        pool = self._pools.get(spec.name)
        if pool is None or pool.spec == spec:
            return ""
        return f"pool {spec.name} takes {pool.spec.capacity} rings at once, not {spec.capacity}"

    def growth(self, spec: RingSpec) -> int:
        """Bytes by which the ring's pool grows if the ring joins it."""
        pool = _pool_of(spec)
        known = self._pools.get(pool.name)
        return max(0, pool.capacity * bytes_needed(spec) - (0 if known is None else known.nbytes))

    def join(self, spec: RingSpec) -> None:
        """The ring may have turns from now on."""
        its = _pool_of(spec)
        if its.name not in self._pools:
            self._pools[its.name] = _Pool(its, tuple(_Place() for _ in range(its.capacity)))
        self._pools[its.name].needs[spec.ring_id] = bytes_needed(spec)

    def leave(self, ring: RingState) -> int:
        """The ring is removed, and its turn is over. Returns how many bytes that frees."""
        name = _pool_of(ring.spec).name
        pool = self._pools[name]
        before = pool.nbytes
        for place in pool.places:
            if place.holder is ring:
                _vacate(place)
        del pool.needs[ring.spec.ring_id]
        for place in pool.places:
            if place.nbytes * pool.spec.capacity > pool.nbytes:
                _empty(place)
        if not pool.needs:
            del self._pools[name]
        return before - pool.nbytes

    # -- turns ---------------------------------------------------------------------------------

    def is_stale(self, ring: RingState, epoch: int) -> bool:
        """Whether a turn is over; counts the packet that came of it."""
        pool = self._pools[_pool_of(ring.spec).name]
        if epoch >= max(ring.epoch, _place(pool, epoch).epoch):
            return False
        pool.stale += 1
        self._counters.stale_turns += 1
        return True

    def refusal(self, ring: RingState, epoch: int, serial: int) -> Refusal | None:
        """Why a message does not begin turn ``epoch`` of its ring, which is not the turn that the ring has.

        Counts what is stale.
        """
        place = _place(self._pools[_pool_of(ring.spec).name], epoch)
        if serial >= 0 and ring.array.region_of(serial).serial == serial:
            return Refusal(WRONG_EPOCH, f"message {serial} came with {epoch}, from others with {ring.epoch}")
        if self.is_stale(ring, epoch):
            return Refusal(STALE)
        ahead = serial - ring.array.next_serial
        if ahead < 0:  # of the turn of that number, perhaps, that it had before it left
            return Refusal("older than the tenant")
        if epoch == place.epoch:
            return Refusal(WRONG_EPOCH, f"turn {epoch} is that of another ring of pool {_name(ring)}")
        if ahead >= ring.spec.window_messages:
            return Refusal("window passed", f"message {serial}, {ahead} past the first of turn {epoch}")
        return None

    def take(self, ring: RingState, epoch: int) -> list[RingState]:
        """The ring's turn ``epoch``, which nothing speaks against, begins.

        Returns the rings that lost slots with messages in them, to be stopped. If ``ring`` is one of them, it
        has none.
        """
        pool = self._pools[_pool_of(ring.spec).name]
        place = _place(pool, epoch)
        pool.takeovers += 1
        self._counters.pool_takeovers += 1
        losers = []
        for one in pool.places:
            if one.holder is not None and (one is place or one.holder is ring):
                if not (one.holder.failed or one.holder.is_between_messages):
                    losers.append(one.holder)
                _vacate(one)
        pool.conflicts += len(losers)
        self._counters.pool_conflicts += len(losers)
        place.epoch = epoch
        if ring not in losers:
            _occupy(place, ring, epoch)
        return losers


def _pool_of(spec: RingSpec) -> PoolSpec:
    if spec.pool is None:
        raise InvariantBroken(f"ring {spec.ring_id} has slots of its own, no turns")
    return spec.pool


def _name(ring: RingState) -> str:
    return _pool_of(ring.spec).name


def _place(pool: _Pool, epoch: int) -> _Place:
    return pool.places[epoch % pool.spec.capacity]


def _occupy(place: _Place, ring: RingState, epoch: int) -> None:
    array = ring.array
    if place.shape != array.shape:
        _empty(place)  # before the new ones are made: there is memory for one ring
        place.spare = array.new_regions()
        place.shape, place.nbytes = array.shape, bytes_needed(ring.spec)
    array.occupy(place.spare)
    place.spare = ()
    place.holder = ring
    ring.epoch = epoch


def _vacate(place: _Place) -> None:
    ring = place.holder
    assert ring is not None, "only what is held is given up"
    ring.epoch = NO_TURN
    ring.dirty.clear()
    for flow in ring.flows:
        flow.forget_messages()
    place.spare = ring.array.vacate()
    place.holder = None


def _empty(place: _Place) -> None:
    place.spare, place.shape, place.nbytes = (), None, 0
