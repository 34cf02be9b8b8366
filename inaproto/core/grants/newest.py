"""Which of all that controllers wish an agent takes: the newest, whatever comes late or twice, or from a
controller whose time is over (docs/protocol.md 17).

Invariant: wishes older than those taken, by (term, revision), are not taken, nor are any of a term before the
newest that was heard of. The same ones may be taken again: they say all, so nothing changes.
"""

from __future__ import annotations


class NewestWishes:
    """Terms and revisions that one agent has heard of."""

    def __init__(self) -> None:
        self.term = 0
        """The newest; wishes of it may not have come yet."""
        self.revision = 0
        """Revision of the wishes that were taken last."""
        self._term_taken = 0
        """Their term."""

    @property
    def taken(self) -> tuple[int, int]:
        """Term and revision of the wishes that were taken last."""
        return self._term_taken, self.revision

    def welcomed(self, term: int) -> bool:
        """A controller says that it leads, in this term; False: one of a later term did so before."""
        if term < self.term:
            return False
        self.term = term
        return True

    def take(self, term: int, revision: int) -> bool:
        """Wishes have come; False: they are old, and change nothing."""
        if term < self.term or (term, revision) < self.taken:
            return False
        self.term = self._term_taken = term
        self.revision = revision
        return True
