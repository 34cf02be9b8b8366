"""What the world needs of a NIC: its state machine without I/O.

The engine of the userspace NIC (``inaproto_adapters.softnic``) is one; the world takes a factory, so that
the simulation runs the very code that the daemons run without depending on adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inaproto.ports import Completion, Segment, Verbs
from inaproto.units import Frames, Instant


class NicEngine(Verbs, Protocol):
    """As :class:`inaproto.ports.Nic`, with the frames and the clock handed in and out."""

    requester_steps: int
    responder_steps: int
    """Events handed to the cores of all its queue pairs."""

    def post_write_imm(
        self,
        qpn: int,
        wr_id: int,
        segments: Sequence[Segment],
        *,
        remote_va: int,
        rkey: int,
        imm: int,
        now: Instant,
    ) -> None: ...
    @property
    def deadline(self) -> Instant | None: ...
    def handle_timer(self, now: Instant) -> None: ...
    def handle_frames(self, blocks: Sequence[Frames], now: Instant) -> None: ...
    def take_output(self) -> list[Frames]: ...
    @property
    def has_completions(self) -> bool: ...
    def take_completions(self) -> list[Completion]: ...
    @property
    def resources(self) -> dict[str, int]:
        """What is in use: ``queue_pairs``, ``regions``, ``work_requests``, ``output_frames``."""
        ...


NicFactory = Callable[[bytes, bytes, int], NicEngine]
"""(MAC address, IP address, first queue pair number) -> a NIC just switched on."""
