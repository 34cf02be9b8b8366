"""The ranks of an attachment to each other: votes from Trio, and callbacks from the library's threads.

Every wait ends at the deadline of the session, and at once when callbacks are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from inaproto.core.collective.events import ExchangeLost, Outcome, PeerFailed
from inaproto.errors import FabricError
from inaproto.ports import OutOfBand
from inaproto.units import Instant
from inaproto_adapters.sharp.words import About, Said, concluded, unpack


class Rounds:
    """See the module; ``post`` is called in Trio with what a callback found out about the others."""

    def __init__(
        self,
        others: OutOfBand,
        deadline: Callable[[], Instant | None],
        post: Callable[[PeerFailed | ExchangeLost], None],
    ) -> None:
        self._others = others
        self._deadline = deadline
        self._post = post
        self._token = trio.lowlevel.current_trio_token()
        self._scope: trio.CancelScope | None = None
        self._is_refused = False

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._others.position

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._others.size

    def allow(self) -> None:
        """Callbacks are served, of the calls of another try."""
        self._is_refused = False

    def refuse(self) -> None:
        """Every callback fails from now on, the one under way as well."""
        self._is_refused = True
        if self._scope is not None:
            self._scope.cancel()

    # --- in threads: what callbacks call

    def exchange(self, about: About, root: int, data: bytes) -> list[bytes]:
        """See :class:`inaproto_adapters.sharp.callbacks.Answers`."""
        if self._is_refused:
            raise _given_up("callbacks are refused")
        said: list[Said] = trio.from_thread.run(
            self._callback, Said(about, root, data), trio_token=self._token
        )
        return [its.data for its in said]

    def failed(self, error: BaseException) -> None:
        """See :class:`inaproto_adapters.sharp.callbacks.Answers`."""
        if not isinstance(error, _PeerHasFailed):
            lost = ExchangeLost(f"a callback failed: {type(error).__name__}: {error}")
            self._token.run_sync_soon(self._post, lost)

    async def _callback(self, own: Said) -> list[Said]:
        said = await self.say(own)
        failed = concluded(own, said)
        if failed is not None:
            self._post(failed)
            raise _PeerHasFailed
        return said

    # --- in Trio

    async def say(self, own: Said) -> list[Said]:
        """What each rank says in this round. Raises ``FabricError``."""
        deadline = self._deadline()
        with trio.CancelScope(deadline=float("inf") if deadline is None else deadline / 1e9) as scope:
            self._scope = scope
            try:
                told = await self._others.all_gather(own.pack())
            finally:
                self._scope = None
            if len(told) != self._others.size:
                raise _given_up(f"{len(told)} of {self._others.size} ranks spoke")
            return [unpack(bytes(each)) for each in told]
        raise _given_up("not all ranks spoke in time, or this one leaves")

    async def vote(self, mark: int, outcome: Outcome) -> tuple[Outcome, ...]:
        """What each rank has of a call. Raises ``FabricError``."""
        own = Said(About.VOTE, mark, outcome=outcome)
        said = await self.say(own)
        if not outcome.weight:
            failed = concluded(own, said)
            if failed is not None:  # some voted on another call, or are in none of ours
                return (failed.outcome,)
        return tuple(its.outcome for its in said)


class _PeerHasFailed(Exception):
    """A callback saw a vote with a failure; who waits for the call has been told."""


def _given_up(cause: str) -> FabricError:
    return FabricError("SHARP", "the job's other hosts", "talking out of band", cause, retryable=True)
