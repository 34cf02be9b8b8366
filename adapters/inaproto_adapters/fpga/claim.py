"""Who drives an accelerator: a claim in its registers, which two machines both see.

On one machine a lock refuses a second control side (:func:`inaproto_adapters.fpga.bus.claim`). Of other
machines it knows nothing, and two of them would take rings and ports from each other as long as both run.

The register CLAIM has an owner, a number that each control side draws, and a beat, which the owner changes
every ``BEAT_S``. Who finds another's claim watches it: if it changes, the accelerator is left alone; if it
does not for ``DEAD_S``, whoever it was is dead. Registers have no exchange, so two may find an accelerator
free at one moment. Each waits for ``SETTLE_S`` after it has claimed, and has it if the claim is its own still
(Fischer's rule). If one of them was slower than that, the later claim stays, and the earlier one ends at its
next beat.

Invariants:

- nothing but the claim is written to an accelerator before it is ours;
- of two that live, one has it: whoever lost it finds the other's claim, and stands back.

An accelerator whose register map has no claims (``CAPS.claims``) is anybody's, as before.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from inaproto.errors import FabricError
from inaproto_adapters.fpga.bus import RegisterBus
from inaproto_adapters.fpga.register_map import (
    CAPS,
    CAPS_CLAIMS,
    CLAIM,
    CLAIM_BEAT,
    CLAIM_NAME,
    CLAIM_NAME_COUNT,
    CLAIM_OWNER,
    WORD_BYTES,
)

BEAT_S: Final = 0.5
DEAD_S: Final = 8 * BEAT_S
"""A bus may be slow: Etherbone gives up on one access after a second."""
SETTLE_S: Final = 0.5
LEAVE_S: Final = 1.0
NAME_BYTES: Final = WORD_BYTES * CLAIM_NAME_COUNT
_NOBODY: Final = 0


class Claim:
    """A control side's claim of one accelerator; ``bus`` leads to it.

    Calls raise ``FabricError`` where the accelerator is another's, or does not answer.
    """

    def __init__(self, bus: RegisterBus, *, owner: int, name: str) -> None:
        self._bus = bus
        self._owner = owner
        self._name = name
        self._beat = 0

    async def take(self) -> None:
        """Have the accelerator; within ``DEAD_S`` and ``SETTLE_S`` it is ours, or another's."""
        found = await self._bus.read32(CLAIM)
        until = trio.current_time() + DEAD_S
        while CLAIM_OWNER.of(found) not in (_NOBODY, self._owner) and trio.current_time() < until:
            await trio.sleep(BEAT_S / 2)
            again = await self._bus.read32(CLAIM)
            if again != found and CLAIM_OWNER.of(again) not in (_NOBODY, self._owner):
                raise await self._anothers("claiming it")
            found = again
        await self._write()
        await trio.sleep(SETTLE_S)
        await self.require()

    async def require(self) -> None:
        """It is ours still."""
        owner = CLAIM_OWNER.of(await self._bus.read32(CLAIM))
        if owner == _NOBODY:
            why = "nobody claims it any more: it was reset"
            raise FabricError("look at the accelerator", self._bus.peer, "reading CLAIM", why, retryable=True)
        if owner != self._owner:
            raise await self._anothers("reading CLAIM")

    async def keep(self) -> None:
        """Renew it until it is another's, or nobody answers."""
        while True:
            await trio.sleep(BEAT_S)
            await self.require()
            await self._write()

    async def leave(self) -> None:
        """The next one need not wait; what goes wrong says nothing to anybody."""
        try:
            await self.require()
            await self._bus.write_burst(CLAIM, [0] * (1 + CLAIM_NAME_COUNT))
        except FabricError:
            pass

    async def _write(self) -> None:
        self._beat = self._beat + 1 & (1 << CLAIM_BEAT.width) - 1
        word = CLAIM_OWNER.at(self._owner) | CLAIM_BEAT.at(self._beat)
        await self._bus.write_burst(CLAIM, [word, *words_of(self._name)])  # CLAIM_NAME is behind it

    async def _anothers(self, phase: str) -> FabricError:
        name = name_of(await self._bus.read_burst(CLAIM_NAME, CLAIM_NAME_COUNT))
        cause = f"somebody else drives it: {name or 'one that has not said its name'}"
        return FabricError("have the accelerator", self._bus.peer, phase, cause, retryable=True)


def new_owner() -> int:
    """A number that no other control side has."""
    return 1 + secrets.randbelow((1 << CLAIM_OWNER.width) - 1)


def own_name() -> str:
    return socket.gethostname()


def words_of(name: str) -> list[int]:
    """As CLAIM_NAME has it."""
    text = name.encode("ascii", "replace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
    return [int.from_bytes(text[at : at + WORD_BYTES], "little") for at in range(0, NAME_BYTES, WORD_BYTES)]


def name_of(words: Sequence[int]) -> str:
    """What can be printed of it: registers may have anything."""
    text = b"".join(word.to_bytes(WORD_BYTES, "little") for word in words).split(b"\0")[0]
    return "".join(chr(byte) if 0x20 < byte < 0x7F else "?" for byte in text)


@asynccontextmanager
async def claimed(bus: RegisterBus, *, owner: int, name: str) -> AsyncIterator[Claim | None]:
    """Have an accelerator alone within the block, which ends with ``FabricError`` when another one has it.

    None: it has no claims.
    """
    if not CAPS_CLAIMS.of(await bus.read32(CAPS)):
        yield None
        return
    claim = Claim(bus, owner=owner, name=name)
    await claim.take()
    failed: list[Exception] = []
    lost: list[FabricError] = []
    async with trio.open_nursery() as nursery:

        async def keep() -> None:
            try:
                await claim.keep()
            except FabricError as error:
                lost.append(error)
                nursery.cancel_scope.cancel()

        nursery.start_soon(keep)
        try:
            yield claim
        except Exception as error:  # noqa: BLE001  said below as it is, not in a group
            failed.append(error)
        finally:
            nursery.cancel_scope.cancel()
            if not lost:
                with trio.move_on_after(LEAVE_S, shield=True):
                    await claim.leave()
    for problem in (*lost, *failed):
        raise problem
