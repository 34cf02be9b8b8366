"""The RoCE path MTU of a host: the one that its settings say, or the largest that its path carries.

A host asks when it has a switch: frames of each size go to the switch and come back, or do not
(:mod:`inaproto.wire.path_probe`). Nothing is assumed: what has not come back is not used by ``mtu = auto``,
and an MTU of the settings that does not come back, while smaller ones do, is named to who would join. On
InfiniBand nothing is asked: no switch of this project is on the way, and subnet management gives each port
its MTU.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.daemon.host.ring_settings import MTU_DEFAULT
from inaproto.daemon.settings.config import AUTO_MTU, HostSettings
from inaproto.errors import FabricError, Unsupported
from inaproto.ports import Nic, ProbesPath

PROBE_AGAIN_S: Final = 10.0
"""How soon a path that carries less than is wanted is looked at again: somebody may have mended it."""

log = logging.getLogger("inaproto.host")


@dataclass(frozen=True, slots=True)
class PathMtu:
    """What is known of the path of one life of a host's NIC."""

    asked: int
    """By the settings; 0: whatever the path carries."""
    largest: int
    """That NIC and switch take."""
    carries: int = 0
    """The largest that came back; 0: none did."""
    why_unknown: str = "not asked yet"
    unasked: int = MTU_DEFAULT
    """The MTU where nothing has come back, if NIC and switch take it."""

    @property
    def mtu(self) -> int:
        """Of packets of the jobs that begin."""
        return self.asked or self.carries or min(self.unasked, self.largest)

    @property
    def is_wanted(self) -> bool:
        """The path carries all that is wanted of it, as far as can be known."""
        return self.carries >= (self.asked or self.largest)

    @property
    def problem(self) -> str:
        """Why no job can run here; empty: one can, as far as is known."""
        if not self.carries or self.carries >= self.asked:
            return ""
        need = 4200 if self.asked == MTUS[-1] else self.asked + 96
        return (
            f"mtu is {self.asked}, and the path to the switch carries RoCE packets of {self.carries} bytes "
            f"at most: larger ones do not come back from it; ip link set INTERFACE mtu {need} at every port "
            f"on the way, or mtu = {self.carries} (or auto) at all hosts of the job"
        )

    def status(self) -> dict[str, Any]:
        return {
            "asked": self.asked or AUTO_MTU,
            "largest": self.largest,
            "carries": self.carries,
            "unknown": "" if self.carries else self.why_unknown,
            "problem": self.problem,
        }


class PathProbing:
    """Finds ``found`` for one life of a NIC."""

    def __init__(self, settings: HostSettings, nic: Nic, *, mtu_max: int, answers: bool) -> None:
        """``answers``: the switch says that it answers probes."""
        self._host = settings.name
        self._nic = nic if isinstance(nic, ProbesPath) else None
        is_infiniband = nic.capabilities.infiniband is not None
        why = "the switch is of a release, or of a kind, that answers no probes" if not answers else ""
        if is_infiniband:
            why = why or "on InfiniBand nothing is asked, and the MTU that the port has now is taken"
        elif self._nic is None:
            why = f"the NIC {nic.capabilities.name} cannot probe it"
        self._can_ask = not why
        self._level = logging.INFO if is_infiniband else logging.WARNING
        self._told = ""
        """The last reason in the log."""
        # A switch that answers no probes may be of a release that wants one MTU of all hosts of a job.
        unasked = mtu_max if is_infiniband and answers else MTU_DEFAULT
        self.found = PathMtu(settings.asked_mtu, mtu_max, why_unknown=why or "not asked yet", unasked=unasked)

    async def look(self) -> None:
        """Ask once; bounded in time."""
        before = self.found
        if self._nic is not None and self._can_ask:
            carries, why = await self._ask(self._nic)
            self.found = replace(before, carries=carries or before.carries, why_unknown=why)
        found = self.found
        if found.problem:
            if found.problem != before.problem:
                log.warning("host %s: %s", self._host, found.problem)
        elif not found.carries:
            if found.why_unknown != self._told:
                log.log(self._level, "host %s: its path is not known: %s", self._host, found.why_unknown)
            self._told = found.why_unknown
        elif found.carries != before.carries:
            log.info("host %s: its path carries RoCE packets of %d bytes", self._host, found.carries)

    async def _ask(self, nic: ProbesPath) -> tuple[int, str]:
        """What came back, and why not, if nothing did."""
        mtus = [mtu for mtu in MTUS if mtu <= (self.found.asked or self.found.largest)]
        try:
            carries = await nic.probe_path(mtus)
        except Unsupported as error:
            self._can_ask = False
            return 0, str(error)
        except FabricError as error:
            return 0, str(error)
        return carries, "no switch has answered: none is at this host's link, or frames of no size come back"

    async def keep_looking(self) -> None:
        """Until it carries what is wanted: for jobs that begin later."""
        while self._can_ask and not self.found.is_wanted:
            await trio.sleep(PROBE_AGAIN_S)
            await self.look()
