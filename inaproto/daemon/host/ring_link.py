"""The links of a host (:mod:`inaproto.core.host.link`) in a daemon: their memory, and how long they take to
connect."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import trio

from inaproto.core.host import link as links
from inaproto.ports import Nic, QpAttributes, RandomBits
from inaproto.units import PSN_BITS
from inaproto.wire.control_messages import IntoAddress, OutAddress


def allocate(nbytes: int) -> memoryview:
    """A mapping of its own, which ends with its last view. Raises ``OSError`` if memory is short."""
    return memoryview(mmap.mmap(-1, nbytes))


class Connecting:
    """The wait for queue pairs that are not connected yet when ``connect`` returns."""

    def __init__(self, nic: Nic) -> None:
        self.is_under_way = False
        self.nic = nic
        self._scope = trio.CancelScope()

    async def wait(self, qpns: Sequence[int]) -> None:
        """Once: until those may be sent to. Returns at once when the wait is over.

        Raises ``FabricError`` if a neighbour cannot be reached, ``PortClosed``.
        """
        try:
            with self._scope:
                for qpn in qpns:
                    await self.nic.wait_connected(qpn)
        finally:
            self.is_under_way = False

    def end(self) -> None:
        self._scope.cancel()


class RingLink(links.RingLink):
    def __init__(self, nic: Nic, *, slots: int, slot_bytes: int, random_bits: RandomBits) -> None:
        super().__init__(
            nic,
            slots=slots,
            slot_bytes=slot_bytes,
            allocate=allocate,
            first_psn=lambda: random_bits(PSN_BITS),
        )
        self.early_failure = ""
        """What its completions told of it before it was connected."""
        self.wait = Connecting(nic)

    def connect(self, successor: IntoAddress, predecessor: OutAddress, attributes: QpAttributes) -> None:
        super().connect(successor, predecessor, attributes)
        self.wait.is_under_way = True

    def close(self) -> None:
        self.wait.end()
        super().close()


class TreeLink(links.TreeLink):
    def __init__(
        self, nic: Nic, *, window: int, slot_bytes: int, children: int, random_bits: RandomBits
    ) -> None:
        super().__init__(
            nic,
            window=window,
            slot_bytes=slot_bytes,
            children=children,
            allocate=allocate,
            first_psn=lambda: random_bits(PSN_BITS),
        )
        self.early_failure = ""
        """What its completions told of it before it was connected."""
        self.wait = Connecting(nic)

    def connect(
        self, parent: IntoAddress | None, children: Sequence[IntoAddress], attributes: QpAttributes
    ) -> None:
        super().connect(parent, children, attributes)
        self.wait.is_under_way = True

    def close(self) -> None:
        self.wait.end()
        super().close()
