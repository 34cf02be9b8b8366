"""The RTL in process as the judge sees it: frames by its ports, rings and counters by its registers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inaproto.core.switch.events import RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto_adapters.fpga.at_once import AtOnceBus, at_once
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_hil.rtl.equivalence.device import Fault, Output
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.verilated.model import Model

BESIDE: Final = frozenset({"rx", "tx", "egress_stalls", "first_packets"})
"""Counters that the software core does not have."""


class RtlDevice:
    """One simulated accelerator. ``library``: from
    :func:`inaproto_hil.rtl.verilated.build.build_accelerator`;
    ``stalls`` as :class:`Model` takes them."""

    def __init__(
        self, library: Path, parameters: Parameters, *, stalls: tuple[int, float] | None = None
    ) -> None:
        self._model = Model(library, parameters, stalls=stalls)
        self._device = at_once(FpgaDevice.identify(AtOnceBus(self._model)))
        self._faults: list[Fault] = []
        self._removed: set[int] = set()
        """Rings that keep their place, so that their packets are dropped."""
        self._told: set[int] = set()
        """Rings whose fault is known."""
        self.set_ports_up(frozenset(range(parameters.ports)))

    @property
    def cycles(self) -> int:
        """Simulated so far."""
        return self._model.cycles

    def install(self, spec: RingSpec) -> str | None:
        for ring_id in [ring_id for ring_id in self._removed if self._is_followed(ring_id, spec)]:
            self._take_out(ring_id)
        answer = at_once(self._device.install(spec))
        if isinstance(answer, RingRefused):
            return answer.reason
        self._told.discard(spec.ring_id)
        return None

    def remove(self, ring_id: int) -> None:
        if ring_id in self._device.rings:
            self.faults()  # the last chance to see that it has failed
            at_once(self._device.stop(ring_id))
            self._removed.add(ring_id)

    def forget(self) -> None:
        for ring_id in list(self._removed):
            self._take_out(ring_id)

    def _is_followed(self, ring_id: int, spec: RingSpec) -> bool:
        """Whether a ring comes on the connections of one that went."""
        before = {flow.connection for flow in self._device.spec_of(ring_id).flows}
        return any(flow.connection in before for flow in spec.flows)

    def _take_out(self, ring_id: int) -> None:
        at_once(self._device.remove(ring_id))
        self._removed.remove(ring_id)

    def set_ports_up(self, up: frozenset[int]) -> None:
        at_once(self._device.set_ports_up(up))

    def frame(self, port: int, data: bytes) -> Output:
        self._model.send(port, data)
        return self._model.run()

    def counters(self) -> dict[str, int]:
        found = at_once(self._device.counters())
        return {name: count for name, count in found.items() if count and name not in BESIDE}

    def faults(self) -> list[Fault]:
        for ring_id in self._device.rings.keys() - self._told:
            fault = at_once(self._device.state(ring_id)).fault
            if fault is not None:
                rule, rank = fault
                self._faults.append((ring_id, rank, rule))
                self._told.add(ring_id)
        return list(self._faults)

    def close(self) -> None:
        self._model.close()
