"""What a host in a job is at one time, for checkers, statistics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inaproto.core.host.carrier import Carrier, Wait
from inaproto.core.host.collective import CollectiveView
from inaproto.core.host.operation_queue import RingView
from inaproto.wire.control_messages import Ring, RingPath
from inaproto.wire.messages.client import DonePath


class Phase(Enum):
    JOINING = "joining"
    """Announced to the switch; other ranks are missing."""
    CONNECTING = "connecting"
    """Connected; other hosts are not, yet."""
    RUNNING = "running"
    LEFT = "left"
    """All its ranks have left in good order; those of other hosts have not, yet."""
    HALTED = "halted"
    """The ring has ended; the next is not there yet."""
    AWAY = "away"
    """The ring has ended, for the host has lost the switch."""
    ENDED = "ended"


IN_RING: Final = (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT)


@dataclass(frozen=True, slots=True)
class HostView:
    """A picture of a host in a job."""

    phase: Phase
    path: DonePath | RingPath
    recoveries: int
    halts: tuple[str, ...]
    """Why the last rings ended."""
    ring: Ring | None
    ina_ring_id: int | None
    is_parked: bool
    operations_by_path: Mapping[DonePath, int]
    waiting_for: tuple[int, ...]
    refused: str
    stall: str
    operations: RingView | None
    wait: Wait | None
    collective: CollectiveView | None

    @staticmethod
    def _path(carrier: Carrier, *, has_ina: bool) -> DonePath | RingPath:
        if has_ina:
            return "shared"
        stands = carrier.collective is not None and carrier.collective.stands
        return "sharp" if stands else carrier.done_path

    @classmethod
    def of(
        cls, phase: Phase, carrier: Carrier, ring: Ring | None, *, recoveries: int, halts: tuple[str, ...]
    ) -> HostView:
        engine = carrier.two_paths
        ina = None if engine is None else engine.ina_config
        return cls(
            phase=phase,
            path=cls._path(carrier, has_ina=ina is not None),
            recoveries=recoveries,
            halts=halts,
            ring=ring,
            ina_ring_id=None if ina is None else ina.ring_id,
            is_parked=engine is not None and engine.is_parked,
            operations_by_path=dict(carrier.done_by),
            waiting_for=carrier.watch.waiting_for,
            refused=carrier.watch.refused,
            stall=carrier.watch.stall,
            operations=None if carrier.engine is None else carrier.engine.view(),
            wait=carrier.wait,
            collective=None if carrier.collective is None else carrier.collective.view(),
        )
