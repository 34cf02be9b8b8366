"""The INA ring of a host in a job on ``shared``: it is attached, has turns, is parked, and ends (MINA IV-C).

It goes through the switches, beside the base ring along the hosts. Which of the two carries an operation is
in :mod:`inaproto.core.host.engines.two_paths`; here is when there is one at all. The switch says at the start
of the base ring whether there will be, and later that the switches have it, or are to be left.

Invariants: it has turns from when the switches have it until it ends, and ends with the base ring; what is
said of another ring, which has ended, does nothing.
"""

from __future__ import annotations

from inaproto.core.host import events
from inaproto.core.host.carrier import Actions, Carrier
from inaproto.core.host.config import HostConfig
from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.host.ranks import HostedRanks
from inaproto.core.host.reports import parked
from inaproto.units import OpIndex
from inaproto.wire.control_messages import Ring, Start
from inaproto.wire.messages.ina import InaPark, InaStands


class InaRing:
    """The INA ring beside the present ring of ``carrier``, if there is one, for ``ranks`` of one job."""

    def __init__(self, job: str, carrier: Carrier, ranks: HostedRanks) -> None:
        self._job = job
        self._carrier = carrier
        self._ranks = ranks
        self._hosts = 0

    @property
    def is_attached(self) -> bool:
        """It stands beside the present ring, or is parked."""
        engine = self._carrier.two_paths
        return engine is not None and engine.ina_config is not None

    def attach(self, config: HostConfig, ring: Ring, start: Start) -> Actions:
        """The ring beside ``ring`` stands, or will. Where the switches refuse it its link is of no use."""
        engine, ring_id = self._carrier.two_paths, start.ina_ring_id
        if engine is None or not ring_id or ring_id != ring.ina_ring_id:
            return [events.CloseIna(), events.Noted("a job began without the ring in the switches")]
        engine.attach(config.ring(ring, ring_id))
        engine.park()
        self._hosts = len(ring.peers)
        actions: Actions = [events.Noted("a job had two rings")]
        if start.ina_parked:
            return [*actions, events.Noted("a job began with its second ring parked")]
        stands = InaStands(job=self._job, ring_id=ring_id, epoch=start.ina_epoch, pool=start.ina_pool)
        return [*actions, *self.stand(stands)]

    def stand(self, stands: InaStands) -> Actions:
        """The switches have it: there may be turns."""
        engine = self._engine(stands.ring_id)
        if engine is None:
            return []
        engine.stand()
        return [events.BeginTurns(stands, self._hosts, engine.binds_next)]

    def ask_to_park(self, park: InaPark) -> Actions:
        """It is to leave its switches, as soon as no turn needs them."""
        return [] if self._engine(park.ring_id) is None else [events.ParkTurns(park)]

    def park(self, park: InaPark) -> Actions:
        """Turns are over, and nothing of it is on its way: the switches may be left."""
        engine = self._engine(park.ring_id)
        if engine is None:
            return []
        engine.park()
        return [events.Tell(parked(self._job, self._ranks, park, messages=engine.ina_messages))]

    def end(self) -> Actions:
        """The present ring ends, and so do turns."""
        return [events.EndTurns()] if self.is_attached else []

    def may_carry(self, op_index: OpIndex) -> bool:
        """The operation runs, and one of two rings carries it."""
        engine = self._carrier.two_paths
        running = None if engine is None else engine.operations.running
        return running is not None and running.index == op_index

    def _engine(self, ring_id: int) -> TwoPaths | None:
        """The engine of the present rings, if that is the one through the switches."""
        engine = self._carrier.two_paths
        if engine is None or engine.ina_config is None or engine.ina_config.ring_id != ring_id:
            return None
        return engine
