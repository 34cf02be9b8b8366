"""Memory that a device may read or write, and by which keys.

A large region that only this host reads from is registered in parts, each a region of the device's own: to
pin 4 MiB of ordinary pages takes a millisecond or two, and pyverbs keeps Python's lock meanwhile, so that a
thread for it would stop all others, too. What peers write to has one key, hence one part.

Invariant: a buffer stays alive while any part of it is registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import InvariantBroken, LocalMisuse
from inaproto.ports import MemoryRegion, Segment
from inaproto_adapters.verbs.library import verbs

PART_BYTES: Final = 4 << 20
"""The event loop may have to register two in a row, and others are to wait 5 ms at most."""
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2
_RELAXED_ORDERING: Final = 1 << 20


@dataclass(slots=True, eq=False)
class Registered:
    """A region, or so much of it as is registered by now."""

    name: str
    data: NDArray[np.uint8]
    """The caller's bytes, kept alive."""
    part_bytes: int
    access: int
    is_local: bool
    va: int = 0
    nbytes: int = 0
    """Registered, from the start on."""
    lkeys: list[int] = field(default_factory=list)
    """Of the parts, in order."""
    mrs: list[Any] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return self.nbytes == self.data.nbytes

    @property
    def region(self) -> MemoryRegion:
        # What peers may not write has no remote key: the local one tells such regions apart.
        first = self.mrs[0]
        return MemoryRegion(key=first.lkey if self.is_local else first.rkey, va=self.va, nbytes=self.nbytes)

    def register_part(self, pd: Any) -> None:
        """The next. What the device refuses is raised as pyverbs does."""
        nbytes = min(self.part_bytes, self.data.nbytes - self.nbytes)
        mr = verbs("mr").MR(pd, nbytes, self.access, address=self.va + self.nbytes)
        self.mrs.append(mr)
        self.lkeys.append(mr.lkey)
        self.nbytes += nbytes

    def close(self) -> None:
        """Give all parts back; what the device refuses is raised when all have been tried."""
        mrs, self.mrs = self.mrs, []
        _close_all(mrs)


class Registrations:
    """Regions of one protection domain, by key."""

    def __init__(self, name: str, pd: Any, *, relaxed_ordering: bool = False) -> None:
        self._name = name
        self._pd = pd
        # It is of the flags that a kernel may leave out of account.
        self._access = _RELAXED_ORDERING if relaxed_ordering else 0
        self.by_key: Final[dict[int, Registered]] = {}

    def begin(self, buffer: memoryview) -> Registered:
        """Nothing of it is registered yet. Raises ``LocalMisuse``."""
        if not buffer.c_contiguous or buffer.nbytes == 0:
            raise LocalMisuse("only a contiguous buffer of at least one byte can be registered")
        data = np.frombuffer(buffer.cast("B"), np.uint8)
        writes = 0 if buffer.readonly else _LOCAL_WRITE | _REMOTE_WRITE
        part_bytes = PART_BYTES if buffer.readonly else max(PART_BYTES, data.nbytes)
        va = int(data.ctypes.data)
        return Registered(self._name, data, part_bytes, writes | self._access, buffer.readonly, va)

    def go_on(self, registered: Registered) -> bool:
        """Register a part more; whether it is whole now, and known."""
        registered.register_part(self._pd)
        if not registered.is_whole:
            return False
        key = registered.region.key
        if key in self.by_key:
            raise InvariantBroken(f"{self._name} gave the key {key} to two memory regions")
        self.by_key[key] = registered
        return True

    def register(self, buffer: memoryview) -> MemoryRegion:
        """All of it at once. What the device refuses is raised as pyverbs does, and nothing is registered."""
        registered = self.begin(buffer)
        with self.undone(registered):
            while not self.go_on(registered):
                pass
        return registered.region

    @contextlib.contextmanager
    def undone(self, registered: Registered) -> Iterator[None]:
        """Parts of what cannot be registered whole are given back."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(verbs("pyverbs_error").PyverbsError):
                registered.close()
            raise

    def gather(self, segments: Sequence[Segment], into: Sequence[Any]) -> tuple[int, int]:
        """Fill segments of the device: how many, and of how many bytes. Raises ``LocalMisuse``."""
        used = total = 0
        room = len(into)
        for key, va, nbytes in segments:
            if nbytes:
                of = self.by_key.get(key)
                if of is None or nbytes < 0 or not of.va <= va <= of.va + of.nbytes - nbytes:
                    raise LocalMisuse(f"{Segment(key, va, nbytes)} is not inside a registered memory region")
                total += nbytes
                begin, part_bytes = va - of.va, of.part_bytes
                part = begin // part_bytes
                if begin + nbytes <= (part + 1) * part_bytes and used < room:  # nearly always
                    one = into[used]
                    one.addr, one.length, one.lkey = va, nbytes, of.lkeys[part]
                    used += 1
                else:
                    used = self._gather_parts(of, va, nbytes, into, used)
        return used, total

    def _gather_parts(self, of: Registered, va: int, nbytes: int, into: Sequence[Any], used: int) -> int:
        while nbytes:
            if used == len(into):
                raise LocalMisuse(f"a write has more segments than the {used} that the device takes")
            part, inside = divmod(va - of.va, of.part_bytes)
            length = min(nbytes, of.part_bytes - inside)
            one = into[used]
            one.addr, one.length, one.lkey = va, length, of.lkeys[part]
            used, va, nbytes = used + 1, va + length, nbytes - length
        return used

    def end(self, region: MemoryRegion) -> None:
        """Raises ``LocalMisuse`` for one that is not registered."""
        known = self.by_key.get(region.key)
        if known is None or (known.va, known.nbytes) != (region.va, region.nbytes):
            raise LocalMisuse(f"memory region {region} is not registered")
        del self.by_key[region.key]
        known.close()

    def close(self) -> None:
        """Give all of them back; what the device refuses is raised when all have been tried."""
        known = list(self.by_key.values())
        self.by_key.clear()
        _close_all(known)


def _close_all(parts: Iterable[Any]) -> None:
    refused: Exception | None = None
    for part in parts:
        try:
            part.close()
        except verbs("pyverbs_error").PyverbsError as error:
            refused = error
    if refused is not None:
        raise refused
