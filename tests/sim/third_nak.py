"""A rule that the product breaks, so that logs, replays and the shrinker have a failure to work on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inaproto.sim.campaign.log import Program
from inaproto.sim.campaign.replay import Parts
from inaproto.sim.frames import world
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.recorder import describe
from inaproto.sim.frames.switch import SimSwitch
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Frames, PortId
from inaproto_hil.soak import block as soak_block

PROGRAM = Program("0.1.0", "0123456789abcdef", "tests.sim.third_nak:PARTS")
SEED = 7
"""Its world has seven hosts, bad weather and a fault."""


class NoThirdNak(Checker):
    name = "no third NAK"

    def begin(self, within: world.World) -> None:
        self._naks = 0

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        for block in blocks:
            self._naks += sum(describe(row.tobytes()).get("nak", False) for row in block)
        if self._naks >= 3:
            raise Violated(self.name, f"port {port} brought NAK number {self._naks}")


PRODUCT = Parts()
PARTS = Parts(checkers=lambda: [NoThirdNak()])


@contextmanager
def installed() -> Iterator[None]:
    """For ``--with``: worlds check this rule and no other."""
    names = vars(world)
    kept = names["all_checkers"]
    names["all_checkers"] = lambda: [NoThirdNak()]
    try:
        yield
    finally:
        names["all_checkers"] = kept


@contextmanager
def installed_without_drawings() -> Iterator[None]:
    """The same, where nothing can be drawn of a failure."""

    def fails(log: object) -> str:
        raise ZeroDivisionError("nothing can be drawn")

    names = vars(soak_block)
    kept = names["draw"]
    names["draw"] = fails
    try:
        with installed():
            yield
    finally:
        names["draw"] = kept
