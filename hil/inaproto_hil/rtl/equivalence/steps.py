"""What goes into devices that are compared: frames, and orders about rings and ports amid them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from inaproto.core.switch.ring_spec import RingSpec
from inaproto_hil.rtl.equivalence.device import Device, Output

Arrival = tuple[int, bytes]
"""Port and frame."""


@dataclass(frozen=True)
class Install:
    """A ring comes."""

    spec: RingSpec


@dataclass(frozen=True)
class Remove:
    """A ring goes; what still comes of it is dropped."""

    ring_id: int


@dataclass(frozen=True)
class Forget:
    """What still comes of the rings that went passes from now on, as all of no ring does."""


@dataclass(frozen=True)
class Ports:
    """These are up from now on, all others down."""

    up: frozenset[int]


Order = Install | Remove | Forget | Ports
Step = Arrival | Order


def carry_out(device: Device, order: Order) -> str | None:
    """Why a ring does not come; None for all else."""
    match order:
        case Install(spec):
            return device.install(spec)
        case Remove(ring_id):
            device.remove(ring_id)
        case Forget():
            device.forget()
        case Ports(up):
            device.set_ports_up(up)
    return None


def frames_in(steps: Sequence[Step]) -> int:
    """How many of them are frames."""
    return sum(isinstance(step, tuple) for step in steps)


class Traffic(Protocol):
    """Frames for devices, and the rings that they need before; others come and go among the frames."""

    @property
    def seed(self) -> int | None: ...

    @property
    def specs(self) -> tuple[RingSpec, ...]: ...

    def __iter__(self) -> Iterator[Step]: ...

    def heard(self, out: Output) -> None:
        """What left the golden device because of the latest frame."""
        ...


@dataclass(frozen=True)
class Script:
    """Frames and orders that are there already."""

    specs: tuple[RingSpec, ...]
    steps: Sequence[Step]
    seed: int | None = None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def heard(self, out: Output) -> None:
        """It goes on as it is."""
