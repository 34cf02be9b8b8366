"""Work requests that follow from one thing are handed to a NIC together, where it can take them so."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from inaproto.ports import BatchesRequests, Nic


class batched:  # noqa: N801  used as a context manager, as contextlib's are
    """Everything that is posted inside is posted at its end."""

    __slots__ = ("_nic",)

    def __init__(self, nic: Nic) -> None:
        self._nic: Final = nic if isinstance(nic, BatchesRequests) else None

    def __enter__(self) -> None:
        if self._nic is not None:
            self._nic.begin_batch()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nic is not None:
            self._nic.end_batch()
