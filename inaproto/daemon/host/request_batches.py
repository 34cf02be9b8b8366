"""Work requests that follow from one thing are handed to a NIC together, where it can take them so."""

from __future__ import annotations

from functools import cache
from types import TracebackType
from typing import Final, cast

from inaproto.ports import BatchesRequests, Nic


@cache
def _takes_batches(kind: type) -> bool:
    """Whether such a NIC does; to look at its methods costs more than most of what is posted."""
    return issubclass(kind, BatchesRequests)


class batched:  # noqa: N801  used as a context manager, as contextlib's are
    """Everything that is posted inside is posted at its end."""

    __slots__ = ("_nic",)

    def __init__(self, nic: Nic) -> None:
        self._nic: Final = cast(BatchesRequests, nic) if _takes_batches(type(nic)) else None

    def __enter__(self) -> None:
        if self._nic is not None:
            self._nic.begin_batch()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nic is not None:
            self._nic.end_batch()
