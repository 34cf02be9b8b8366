"""A board as the accelerator of a switch: ``inaproto switch --accelerator fpga:BUS``.

The switch daemon is its control plane and nothing else. Hosts are at the board's own ports, and no frame
passes this process; orders about rings go to its registers. What it says of a ring comes later, so that a
bus that is slow, or a board that hangs, holds nobody up.

Invariants:

- hosts begin with a ring when its tables are written, not before;
- a board that does not answer has no rings: all of them are said to be lost at once, their hosts sum without
  it, and come back when it does;
- a board that another control plane has claimed is left alone, and its name is said
  (:mod:`inaproto_adapters.fpga.claim`);
- a board that somebody else drives, too, is lost: his rings were put in where ours are;
- whatever was on a board before is taken out before its ports are opened (a reset closes them); what still
  comes for those rings is dropped for ``LINGER_S`` and passes afterwards, as its hosts have stopped.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

import trio

from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorLost,
    AcceleratorView,
    Action,
    Counters,
    Event,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingReady,
    RingRefused,
    RingState,
    RoundArrived,
    SaidLater,
)
from inaproto.errors import FabricError, InvariantBroken, Unsupported
from inaproto.ports import Adapter
from inaproto.units import Instant, S
from inaproto_adapters.fpga.buses import Opener, bus_opener
from inaproto_adapters.fpga.claim import Claim, claimed, new_owner, own_name
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_adapters.fpga.register_map import PORTS
from inaproto_adapters.fpga.rings import FpgaRings

log = logging.getLogger("inaproto.fpga")

LINGER_S: Final = 0.5
LOOK_S: Final = 0.02
"""How soon a fault is noticed."""
VIEW_S: Final = 0.5
"""How old counters in the status are, at most."""
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 5.0

Order = InstallRing | RemoveRing


class BoardAccelerator:
    """See the module. ``where`` is its bus, as the settings name it; ``name`` is for other control planes."""

    def __init__(
        self, open_bus: Opener, where: str, config: AcceleratorConfig, *, name: str | None = None
    ) -> None:
        self._open_bus = open_bus
        self._where = where
        self._config = config
        self._name = own_name() if name is None else name
        self._owner = new_owner()
        self._orders: deque[tuple[Order, Instant]] = deque()
        self._ordered = trio.Event()
        self._why_lost = "it has not been reached yet"
        self._device: FpgaDevice | None = None
        """While it answers."""
        self._view = AcceleratorView({}, Counters(), 0, 0)
        self._opened = 0

    @property
    def rings(self) -> Mapping[int, RingState]:
        """None that can be looked into: they are in the hardware."""
        return {}

    @property
    def addresses(self) -> Mapping[bytes, int]:
        """None that can be looked into."""
        return {}

    @property
    def mtu_max(self) -> int:
        """0 while it does not answer."""
        return 0 if self._device is None else self._device.identity.mtu

    def view(self) -> AcceleratorView:
        """As it was ``VIEW_S`` ago, or when it was lost."""
        return self._view

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bus": self._where,
            "is_there": self._device is not None,
            "error": self._why_lost,
            "opened": self._opened,
        }
        if self._device is not None:
            identity = self._device.identity
            found |= {
                "peer": self._device.bus.peer,
                "version": "{}.{}".format(*identity.version),
                "ports": identity.ports,
                "rings": identity.rings,
                "ranks": identity.children,
                "slots": identity.slots,
                "mtu": identity.mtu,
                "window": identity.window,
                "dtypes": sorted(dtype.name.lower() for dtype in identity.dtypes),
            }
        return found

    def step(self, event: Event, now: Instant) -> list[Action]:
        match event:
            case InstallRing(spec):
                if self._device is None:
                    return [RingRefused(spec.ring_id, self._refusal())]
                self._order(event, now)
            case RemoveRing():
                self._order(event, now)
            case PortUp() | PortDown():
                pass  # of this process, where no host is
            case FramesArrived() | RoundArrived():
                raise InvariantBroken("frames for a board come in at its own ports")
            case _:
                assert_never(event)
        return []

    def _order(self, order: Order, now: Instant) -> None:
        if self._device is not None:
            self._orders.append((order, now))
            self._ordered.set()

    def _refusal(self) -> str:
        return f"the accelerator ({self._where}) cannot be reached: {self._why_lost}"

    async def run(self, say: Callable[[SaidLater], None]) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                async with (
                    await self._reach() as device,
                    claimed(device.bus, owner=self._owner, name=self._name) as claim,
                ):
                    pause_s = RETRY_FIRST_S
                    await self._serve(device, claim, say)
            except (FabricError, Unsupported) as error:
                was_there, self._device = self._device is not None, None
                self._why_lost = str(error)
                self._orders.clear()
                if was_there:
                    say(AcceleratorLost(self._refusal()))
                log.warning("no accelerator: %s; it is tried again in %g s", error, pause_s)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LAST_S)

    async def _reach(self) -> _Opened:
        bus = await self._open_bus()
        try:
            return _Opened(await FpgaDevice.identify(bus))
        except BaseException:
            await bus.aclose()
            raise

    async def _serve(self, device: FpgaDevice, claim: Claim | None, say: Callable[[SaidLater], None]) -> None:
        """Until it does not answer, which is an error."""
        await device.empty(linger=LINGER_S)
        ports_up = await device.set_ports_up(range(device.identity.ports))
        await _require_ports(device, ports_up)
        rings = FpgaRings(device, retired_ns=self._config.retired_ns)
        await rings.faults()  # of rings before
        self._view = await rings.view()
        self._device, self._why_lost = device, ""
        self._opened += 1
        log.info(
            "%s is there: %d ports, %d slots", device.bus.peer, device.identity.ports, device.identity.slots
        )
        next_view = trio.current_time() + VIEW_S
        while True:
            with trio.move_on_after(LOOK_S):
                await self._ordered.wait()
            self._ordered = trio.Event()
            if claim is not None:
                await claim.require()  # this process may have stood still for so long that another took it
            while self._orders:
                await self._obey(rings, *self._orders.popleft(), say)
            await rings.expire(Instant(int(trio.current_time() * S)))
            for found in await rings.faults():
                say(found)
            await _require_ports(device, ports_up)
            if not await rings.has_kept():
                raise _not_ours(device, "reading its rings", "its rings are not those that were put in")
            if trio.current_time() >= next_view:
                self._view = await rings.view()
                next_view = trio.current_time() + VIEW_S

    async def _obey(
        self, rings: FpgaRings, order: Order, now: Instant, say: Callable[[SaidLater], None]
    ) -> None:
        match order:
            case InstallRing(spec):
                refused = await rings.install(spec, now)
                say(RingReady(spec.ring_id) if refused is None else refused)
            case RemoveRing(ring_id):
                await rings.remove(ring_id, now)


async def _require_ports(device: FpgaDevice, ports_up: int) -> None:
    """Raises ``FabricError``."""
    if await device.bus.read32(PORTS) != ports_up:
        raise _not_ours(device, "reading PORTS", "its ports are not as they were set")


def _not_ours(device: FpgaDevice, phase: str, cause: str) -> FabricError:
    cause = f"{cause}: it was reset, or somebody else drives it"
    return FabricError("look at the accelerator", device.bus.peer, phase, cause, retryable=True)


class _Opened:
    """A device, whose bus is closed in the end."""

    def __init__(self, device: FpgaDevice) -> None:
        self._device = device

    async def __aenter__(self) -> FpgaDevice:
        return self._device

    async def __aexit__(self, *_: object) -> None:
        await self._device.bus.aclose()


def open_board(text: str, config: AcceleratorConfig) -> BoardAccelerator:
    """What ``--accelerator fpga:TEXT`` names. Raises ``LocalMisuse`` for what names no bus."""
    return BoardAccelerator(bus_opener(text), text, config)


ADAPTER: Final = Adapter(name="fpga", kinds=frozenset({"accelerator"}), open=open_board)
