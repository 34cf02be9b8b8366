"""What outlives a host daemon in an exploration: the journal's memory, seen at each store, and tensors.

An arena is as large as a real one, and hardly any of it is ever written; an *image* of it is what was.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from inaproto.core.host.journal import (
    _RECORD,
    Journal,
    JournalRefused,
    Past,
    PrivateArea,
    PrivateArena,
    read_journal,
)
from inaproto.sim.explore.successors.config import SuccessorsConfig

DENSE_BYTES_MAX: Final = 1 << 16
"""A larger area is written here and there only."""


class AreaImage(NamedTuple):
    at: int
    nbytes: int
    written: tuple[tuple[int, bytes], ...]
    """Where in the area, and what."""


class ArenaImage(NamedTuple):
    end: int
    """Where the next area is to begin."""
    areas: tuple[AreaImage, ...]


class _Sparse(PrivateArea):
    """Zeroed pages come when they are written."""

    def __init__(self, arena: ExploredArena, at: int, nbytes: int) -> None:
        self.at = at
        self.view = memoryview(mmap.mmap(-1, nbytes))
        self._arena = arena


class ExploredArena(PrivateArena):
    """Its first area is the journal's, and large."""

    def __init__(self, image: ArenaImage | None = None) -> None:
        super().__init__()
        self.written: dict[int, int] = {}
        """Where something was written in the large area, and how much at most."""
        for area in () if image is None else image.areas:
            self._end = area.at
            view = self.allocate(area.nbytes).view
            for at, data in area.written:
                view[at : at + len(data)] = data
                if area.nbytes > DENSE_BYTES_MAX:
                    self.note(at, len(data))
        self._end = self._end if image is None else image.end

    def allocate(self, nbytes: int) -> PrivateArea:
        if nbytes <= DENSE_BYTES_MAX:
            return super().allocate(nbytes)
        area = _Sparse(self, self._end, nbytes)
        self._end += nbytes
        self.areas.append(area)
        return area

    def note(self, at: int, nbytes: int) -> None:
        if self.written.get(at, -1) < nbytes:
            self.written[at] = nbytes

    def keep_only(self, nbytes: int) -> None:
        """As the memory that real processes hold: what lies behind is given back."""
        self.areas = [area for area in self.areas if area.at < nbytes]

    @property
    def image(self) -> ArenaImage:
        return ArenaImage(self._end, tuple(map(self._of, self.areas)))

    def _of(self, area: PrivateArea) -> AreaImage:
        view = area.view
        if len(view) <= DENSE_BYTES_MAX:
            return AreaImage(area.at, len(view), ((0, bytes(view)),))
        written = tuple((at, bytes(view[at : at + nbytes])) for at, nbytes in sorted(self.written.items()))
        return AreaImage(area.at, len(view), written)


class WatchedJournal(Journal):
    """Whoever ``watches`` is called before each store, of data before each half of them."""

    watches: Callable[[], None]

    def _tables(self) -> None:
        self._noted(0, self._layout.facts_at)

    def _noted(self, at: int, nbytes: int) -> None:
        arena = self.arena
        assert isinstance(arena, ExploredArena)
        arena.note(at, nbytes)

    def _store(self, at: int, word: int) -> None:
        self.watches()
        super()._store(at, word)

    def _pack(self, fields: Any, at: int, *words: int) -> None:
        if at >= self._layout.facts_at:
            self._noted(at, fields.size)
        self.watches()
        super()._pack(fields, at, *[0] * len(words))
        for count in range(1, len(words) + 1):
            self.watches()
            super()._pack(fields, at, *words[:count], *[0] * (len(words) - count))

    def _put_record(self, memory: memoryview, at: int, *words: int) -> None:  # type: ignore[override]
        self._pack(_RECORD, at, *words)

    def taken(self) -> None:
        self.watches()
        super().taken()

    def _copy(self, at: int, data: bytes | memoryview) -> memoryview:
        self._noted(at, len(data))
        self.watches()
        super()._copy(at, data[: len(data) // 2])
        self.watches()
        return super()._copy(at, data)


def journal_of(
    config: SuccessorsConfig, arena: ExploredArena, past: Past | None, watches: Callable[[], None]
) -> WatchedJournal:
    if past is None:
        journal = WatchedJournal(arena, window_messages=config.window, tensor_bytes=config.tensor_bytes)
    else:
        journal = WatchedJournal.of_successor(arena, past)
    journal.watches = watches
    journal._tables()
    return journal


def read(config: SuccessorsConfig, arena: ExploredArena) -> Past | None:
    """None: the job had not begun. Raises ``JournalRefused`` for one that no successor can go on with."""
    try:
        return read_journal(arena, window_messages=config.window, tensor_bytes=config.tensor_bytes)
    except JournalRefused as why:
        if "had not begun" in str(why):
            return None
        raise
