"""How the ranks of a process group agree on a job: by the store that torch gave the group.

The store may be older than the group: torchrun's outlives a restart and keeps all keys. So nothing is read
that was not asked for: each rank but 0 writes a fresh nonce, rank 0 answers every nonce that appears with the
job's name and key, both fresh, and each rank confirms that very name, saying whether inaproto can serve it.
When all have, rank 0 writes what was decided. The key is as secret as the store is.

Only ``check``, ``get`` of keys that are there, and ``set`` are used: a ``get`` that waits would hold the
store's connection, which the process has only once.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from inaproto.errors import OperationTimeout

LOOK_S_MIN: Final = 0.001
LOOK_S_MAX: Final = 0.05
RUN_CHARACTERS_MAX: Final = 32
SPACE: Final = "inaproto/"


class Store(Protocol):
    """As much of torch's stores as is used."""

    def set(self, key: str, value: str, /) -> Any: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Agreed:
    """The same on all ranks."""

    job: str
    key: str = field(repr=False)
    lacks: Mapping[int, str]
    """Why inaproto cannot serve, by rank; empty: it can serve all."""


class Patience:
    """When to look again, and until when."""

    def __init__(
        self, until: float, timeout: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._until = until
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._pause = LOOK_S_MIN

    def again(self, missing: Callable[[], str]) -> None:
        """Wait a little. Raises ``OperationTimeout``, which says what was missing."""
        left = self._until - self._clock()
        if left <= 0:
            raise OperationTimeout(f"{missing()} within {self._timeout:g} s")
        self._sleep(min(self._pause, left))
        self._pause = min(LOOK_S_MAX, 1.5 * self._pause)


def meet(
    store: Store, rank: int, size: int, *, group: str, why_not: str, run: str, patience: Patience
) -> Agreed:
    """Agree with the other ranks of ``group``. ``why_not``: why inaproto cannot serve this rank; empty: it
    can.

    ``run`` is a word for people in the job's name. Raises ``OperationTimeout``, naming who is missing.
    """
    if rank == 0:
        return _lead(store, size, group=group, why_not=why_not, run=run, patience=patience)
    return _follow(store, rank, group=group, why_not=why_not, patience=patience)


def _lead(store: Store, size: int, *, group: str, why_not: str, run: str, patience: Patience) -> Agreed:
    word = re.sub(r"[^A-Za-z0-9_.-]", "-", run)[:RUN_CHARACTERS_MAX]
    job = "-".join(part for part in ("torch", word, secrets.token_hex(8)) if part)
    key = secrets.token_hex(32)
    lacks = {0: why_not} if why_not else {}
    answered: dict[int, str] = {}
    missing = set(range(1, size))
    while missing:
        for rank in sorted(missing):
            asks = f"{SPACE}ask/{rank}"
            if store.check([asks]):
                nonce = store.get(asks).decode()
                if answered.get(rank) != nonce:
                    store.set(f"{SPACE}answer/{nonce}", json.dumps({"job": job, "key": key}))
                    answered[rank] = nonce
            confirms = f"{SPACE}confirm/{job}/{rank}"
            if store.check([confirms]):
                said = json.loads(store.get(confirms))
                if said["nonce"] == answered.get(rank):
                    missing.discard(rank)
                    if said["lacks"]:
                        lacks[rank] = str(said["lacks"])
        if missing:
            patience.again(
                lambda: f"{group}: {_ranks(missing)} of {size} did not come to the group's first all-reduce"
            )
    store.set(f"{SPACE}decision/{job}", json.dumps({str(rank): why for rank, why in lacks.items()}))
    return Agreed(job, key, lacks)


def _follow(store: Store, rank: int, *, group: str, why_not: str, patience: Patience) -> Agreed:
    nonce = secrets.token_hex(16)
    store.set(f"{SPACE}ask/{rank}", nonce)
    answer = f"{SPACE}answer/{nonce}"
    while not store.check([answer]):
        patience.again(lambda: f"{group}: rank 0 did not come to the group's first all-reduce")
    told = json.loads(store.get(answer))
    job, key = str(told["job"]), str(told["key"])
    store.set(f"{SPACE}confirm/{job}/{rank}", json.dumps({"nonce": nonce, "lacks": why_not}))
    decision = f"{SPACE}decision/{job}"
    while not store.check([decision]):
        patience.again(
            lambda: f"{group}: rank 0 waits for other ranks, which did not come to the first all-reduce"
        )
    lacks = json.loads(store.get(decision))
    return Agreed(job, key, {int(which): str(why) for which, why in lacks.items()})


def _ranks(ranks: set[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))
