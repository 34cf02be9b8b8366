"""Every frame is delivered, dropped by the weather, or dropped under a name; none is lost or made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.checkers.checker import Checker, Violated

if TYPE_CHECKING:
    from inaproto.sim.host import SimHost
    from inaproto.sim.link import SimLink
    from inaproto.sim.world import World

_ARRIVALS = ("packets_received", "icrc_errors", "not_for_us", "unknown_qp", "wrong_source", "other_frames")


class Ledger(Checker):
    name = "ledger"

    def sample(self, world: World) -> None:
        for host in world.hosts:
            for link in (host.uplink, world.downlinks[host.number]):
                self._link(link)
            if host.is_up:
                self._nic(host)
        if world.switch.is_up:
            counters = world.switch.accelerator.view().counters
            told = counters.aggregated_in + counters.bridged + sum(counters.dropped.values())
            if told != world.switch.frames_in:
                raise Violated(
                    self.name,
                    f"the switch took {world.switch.frames_in} frames in and accounts for {told}: {counters}",
                )

    def end(self, world: World) -> None:
        self.sample(world)
        for host in world.hosts:
            for link in (host.uplink, world.downlinks[host.number]):
                if link.under_way:
                    raise Violated(self.name, f"{link.name}: {link.under_way} frames never arrived")

    def _link(self, link: SimLink) -> None:
        told = link.delivered + link.under_way + sum(link.dropped.values())
        if link.sent + link.copies != told:
            raise Violated(
                self.name, f"{link.name}: {link.sent} sent and {link.copies} copies, {told} accounted for"
            )

    def _nic(self, host: SimHost) -> None:
        statistics = host.nic.statistics()
        told = sum(statistics[name] for name in _ARRIVALS)
        if told != host.frames_in:
            raise Violated(
                self.name,
                f"{host}: its NIC took {host.frames_in} frames in and accounts for {told}: {statistics}",
            )
        if statistics["packets_sent"] != host.frames_out:
            raise Violated(
                self.name,
                f"{host}: its NIC sent {statistics['packets_sent']} frames, {host.frames_out} came out",
            )
