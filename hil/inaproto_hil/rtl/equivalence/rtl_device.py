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
        at_once(self._device.set_ports_up(range(parameters.ports)))

    @property
    def cycles(self) -> int:
        """Simulated so far."""
        return self._model.cycles

    def install(self, spec: RingSpec) -> str | None:
        answer = at_once(self._device.install(spec))
        return answer.reason if isinstance(answer, RingRefused) else None

    def frame(self, port: int, data: bytes) -> Output:
        self._model.send(port, data)
        return self._model.run()

    def counters(self) -> dict[str, int]:
        found = at_once(self._device.counters())
        return {name: count for name, count in found.items() if count and name not in BESIDE}

    def faults(self) -> list[Fault]:
        told = {ring_id for ring_id, _, _ in self._faults}
        for ring_id in self._device.rings.keys() - told:
            fault = at_once(self._device.state(ring_id)).fault
            if fault is not None:
                rule, rank = fault
                self._faults.append((ring_id, rank, rule))
        return list(self._faults)

    def close(self) -> None:
        self._model.close()
