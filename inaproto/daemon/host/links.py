"""The links of a host in the rings of a job: made, connected, attached and given back.

A ring has one link (:mod:`inaproto.daemon.host.ring_link`). Where a job has two rings at once
(:mod:`inaproto.core.host.engines.two_paths`) there is a second one, for the ring through the switches; the
base ring's is *the* link.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.plan.accumulators import accumulators_on, plan_of_text
from inaproto.core.plan.host_tree import overlay_on
from inaproto.daemon.host.operations import IN_RING, Phase, overlay_of
from inaproto.daemon.host.ring_link import RingLink, TreeLink
from inaproto.daemon.host.ring_status import HostRingStatus
from inaproto.errors import FabricError, JoinRefused, LocalMisuse
from inaproto.ports import Nic, QpAttributes, RandomBits
from inaproto.units import RingId
from inaproto.wire.control_messages import Ready, Ring, RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.ina_messages import InaPark, InaParked, InaStands


class HostLinks(HostRingStatus):
    """Of the present rings, or of those that come next."""

    _random_bits: RandomBits
    _to_await: list[RingLink | TreeLink]
    """Links of the present rings that nobody waits for yet."""
    _unready: list[RingLink | TreeLink]
    """Links of the present rings that are not connected yet."""

    @property
    def nic(self) -> Nic:
        return self._link.wait.nic

    @property
    def queue_pairs(self) -> list[int]:
        return [qpn for link in self._links for qpn in link.qpns]

    @property
    def _links(self) -> list[RingLink | TreeLink]:
        return [self._link] if self._ina is None else [self._link, self._ina]

    def _open_links(self, nic: Nic, path: RingPath, plan: str, children: int = 0) -> None:
        """Queue pairs and slots for the next ring, or both. Raises ``JoinRefused`` if there can be none.

        ``children``: in an overlay, from how many hosts this one gathers.
        """
        settings = self._settings
        if path == "overlay":
            self._link, self._ina = self._open_tree_link(nic, plan, children), None
            return
        slot_bytes = message_bytes = settings.message_packets * settings.mtu
        if path != "switch":  # all hosts take the same size, though one may not know yet how many there are
            try:
                accumulators = accumulators_on(path, plan, self._size)
            except LocalMisuse as error:
                raise self._no_path(path, error) from None
            slot_bytes = accumulators.slot_bytes(slot_bytes - INA_HEADER_BYTES)
        self._link, self._ina = self._open_link(nic, slot_bytes), None
        if path == "shared":
            try:
                self._ina = self._open_link(nic, message_bytes)
            except JoinRefused:
                self._link.close()
                raise

    def _open_link(self, nic: Nic, slot_bytes: int) -> RingLink:
        try:
            return RingLink(
                nic,
                slots=2 * self._settings.window_messages,
                slot_bytes=slot_bytes,
                random_bits=self._random_bits,
            )
        except (LocalMisuse, FabricError, OSError) as error:
            raise self._no_room(error) from None

    def _open_tree_link(self, nic: Nic, plan: str, children: int) -> TreeLink:
        settings = self._settings
        try:
            tree = overlay_on(plan, len(plan_of_text(plan, self._size).ranks), 1)
        except LocalMisuse as error:
            raise self._no_path("overlay", error) from None
        try:
            return TreeLink(
                nic,
                window=settings.window_messages,
                slot_bytes=tree.slot_bytes(settings.message_packets * settings.mtu - INA_HEADER_BYTES),
                children=children,
                random_bits=self._random_bits,
            )
        except (LocalMisuse, FabricError, OSError) as error:
            raise self._no_room(error) from None

    def _no_path(self, path: RingPath, error: Exception) -> JoinRefused:
        return JoinRefused(f"{self}: the path {path} that its switch names cannot be used here: {error}")

    def _close_links(self) -> None:
        for link in self._links:
            link.close()

    def _no_room(self, error: Exception) -> JoinRefused:
        return JoinRefused(f"job {self.job!r}: host {self._settings.name} has no room for it: {error}")

    # --- connecting

    def _connect_links(self, ring: Ring) -> None:
        """Raises ``LocalMisuse`` for addresses that cannot be used, ``FabricError``."""
        settings = self._settings
        attributes = QpAttributes(
            mtu=settings.mtu,
            timeout=settings.transport_timeout,
            retry_count=settings.retry_count,
            traffic_class=settings.traffic_class,
        )
        if isinstance(self._link, TreeLink):
            if ring.path != "overlay":
                raise LocalMisuse(f"a ring on the path {ring.path} for queue pairs of a tree")
            is_root = overlay_of(ring).root == ring.position
            self._link.connect(None if is_root else ring.successor, ring.below, attributes)
        elif len(ring.peers) > 1:
            self._link.connect(ring.successor, ring.predecessor, attributes)
        if self._ina is not None and ring.ina_successor is not None and ring.ina_predecessor is not None:
            self._ina.connect(ring.ina_successor, ring.ina_predecessor, attributes)

    def take_connecting(self) -> list[RingLink | TreeLink]:
        """Once for each ring with neighbours: :meth:`connected` wants to hear what becomes of these links."""
        links, self._to_await = self._to_await, []
        return links

    def connected(self, link: RingLink | TreeLink, failure: str = "") -> None:
        """Say that this host is ready: what is sent to it now arrives. Or why it will not be.

        The others begin as soon as all are: what came sooner would be lost, until a timer brings it again.
        """
        if link not in self._links or self.phase is not Phase.CONNECTING:
            return  # that ring has ended
        reason = f"{self}: {failure}" if failure else link.early_failure
        if reason:
            self._transport_failed(reason)
            return
        self._unready = [other for other in self._unready if other is not link]
        if not self._unready:
            self._tell(Ready(job=self.job, rank=self._lowest))

    def _attach_ina(self, ring: Ring, ina_ring_id: int, stands: InaStands | None) -> None:
        """The ring beside this one stands, or will (``stands`` is None). Where the switches have refused it
        its link is of no use."""
        if self._ina is None or self._is_broken:
            return
        if isinstance(self._engine, TwoPaths) and ina_ring_id and ina_ring_id == ring.ina_ring_id:
            self._engine.attach(replace(self._ring_config(ring), ring_id=RingId(ina_ring_id)))
            self._engine.park()
            if stands is not None:
                self._stand(self._engine, ring, stands)
        else:
            self._ina.close()
            self._ina = None

    # --- the ring through the switches comes and goes

    def park(self, message: InaPark) -> None:
        """It is to leave its switches: have no turns there, and say when nothing of it is on its way."""
        if self._engine_of(message.ring_id) is not None:
            self._turns.park(partial(self._parked, message))

    def _parked(self, message: InaPark) -> None:
        engine = self._engine_of(message.ring_id)
        if engine is None:
            return
        parked = InaParked(
            job=self.job,
            rank=self._lowest,
            ring_id=message.ring_id,
            epoch=message.epoch,
            messages=engine.ina_messages,
        )

        def park() -> None:
            engine.park()
            self._tell(parked)

        self._guard(park)

    def ina_stands(self, message: InaStands) -> None:
        """The switches have it: there may be turns."""
        engine = self._engine_of(message.ring_id)
        if engine is not None and self._ring is not None:
            self._stand(engine, self._ring, message)

    def _stand(self, engine: TwoPaths, ring: Ring, message: InaStands) -> None:
        engine.stand()
        self._turns.begin(
            ring_id=message.ring_id,
            hosts=len(ring.peers),
            next_operation=engine.binds_next,
            changed=self.binding_changed,
            pool=message.pool,
            stand=message.epoch,
            differs=self.binding_differs,
        )

    def _engine_of(self, ina_ring_id: int) -> TwoPaths | None:
        """Of the present rings, if that is the one through the switches."""
        engine = self._engine
        if not isinstance(engine, TwoPaths) or engine.ina_config is None or self._is_broken:
            return None
        return engine if self.phase in IN_RING and engine.ina_config.ring_id == ina_ring_id else None
