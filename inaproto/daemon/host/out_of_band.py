"""What the hosts of a job say to each other while they attach to a collective library (docs/protocol.md 9.8).

Words go through the control plane of the switches, and are lost with a connection; an attempt that lacks one
ends by its deadline. Invariant: the first bad last word ends the attempt for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from inaproto.errors import FabricError
from inaproto.wire.messages.collective import LAST, CollectiveWord

ROUNDS_MAX: Final = 4096
"""Of an attempt: more than any library needs."""


class Table:
    """One attempt, as one host sees it: an ``OutOfBand``. ``tell`` sends a word to all other hosts."""

    def __init__(
        self,
        job: str,
        hosts: Sequence[str],
        position: int,
        attempt: int,
        tell: Callable[[CollectiveWord], None],
    ) -> None:
        self._job, self._hosts, self.position, self._attempt = job, hosts, position, attempt
        self._tell = tell
        self._said: dict[int, dict[str, CollectiveWord]] = {}
        self._round = 0
        self._changed = trio.Event()
        self._over = ""

    @property
    def size(self) -> int:
        return len(self._hosts)

    def heard(self, word: CollectiveWord) -> None:
        """Another host says that."""
        if word.host in self._hosts and (word.round < ROUNDS_MAX or word.round == LAST):
            self._said.setdefault(word.round, {})[word.host] = word
            self._changed.set()

    def give_up(self, why: str) -> None:
        """Whoever waits, or comes, fails."""
        self._over = self._over or why
        self._changed.set()

    async def all_gather(self, data: bytes) -> list[bytes]:
        """As the port has it. Raises ``FabricError``."""
        number, self._round = self._round, self._round + 1
        words = await self._gather(number, self._word(number, data=data))
        return [word.data for word in words]

    async def end(self, failed: str) -> str:
        """This host is attached, or has failed. Why the attempt has failed; empty: all are attached."""
        word = self._word(LAST, failed=failed)
        if failed:
            self._tell(word)
            return failed
        try:
            await self._gather(LAST, word)
        except FabricError as error:
            return error.cause
        return ""

    def _word(self, number: int, *, data: bytes = b"", failed: str = "") -> CollectiveWord:
        host = self._hosts[self.position]
        return CollectiveWord(
            job=self._job, host=host, attempt=self._attempt, round=number, data=data, failed=failed
        )

    async def _gather(self, number: int, own: CollectiveWord) -> list[CollectiveWord]:
        said = self._said.setdefault(number, {})
        said[own.host] = own
        self._tell(own)
        while True:
            self._changed = trio.Event()
            why = self._over or self._failure()
            if why:
                raise FabricError("collective", "the other hosts", "attaching", why, retryable=True)
            if len(said) == self.size:
                return [said[host] for host in self._hosts]
            await self._changed.wait()

    def _failure(self) -> str:
        last = self._said.get(LAST, {})
        return next((f"host {word.host}: {word.failed}" for word in last.values() if word.failed), "")
