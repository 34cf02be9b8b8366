"""The collectives that both kinds of communicator have beside ``all_reduce``; they differ in the work alone.

What each becomes is in :mod:`inaproto.client.collectives`, how it begins in :mod:`inaproto.client.starting`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from inaproto.client import collectives
from inaproto.client.collectives import Collective

W = TypeVar("W")


class Collectives(Generic[W]):
    """Each call returns at once, with a work; all ranks make the same calls in the same order.

    A rank that calls something else than the others, or the same of another shape or type, ends the job with
    ``TensorMismatch`` for all. Arrays are C-contiguous: numpy's, tensors of torch on the CPU, others with
    ``__array__`` or DLPack on the CPU, single numbers. They are copied before the call returns, unless it is
    ``in_place``. Results are new numpy arrays, or go to ``out``, which is returned, when they are whole.
    With ``timeout``, in seconds, the work fails with ``OperationTimeout`` if it has not ended by then, also
    if nobody waits; the operation still runs, as all other ranks take part in it.
    Raises ``LocalMisuse`` before anything is sent, or the error that the job failed with.

    What is only moved is any type of a fixed size (bool, int8, complex, float8 of ml_dtypes, ...), and keeps
    every bit, of -0.0 and NaNs as well, by every path. It is an all-reduce of zeros but for what a rank has:
    over each link ``broadcast`` goes once where switches add, ``all_gather`` as often as there are ranks.
    """

    @property
    def rank(self) -> int:
        raise NotImplementedError

    @property
    def size(self) -> int:
        raise NotImplementedError

    def _start(self, collective: Collective, timeout: float | None = None, call: str = "all_reduce") -> W:
        """``call``: the method that was called."""
        raise NotImplementedError

    def broadcast(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        in_place: bool = False,
        timeout: float | None = None,
    ) -> W:
        """Start a broadcast: the result on every rank is the ``array`` of rank ``root``, bit for bit.

        ``array``: any shape, any dtype of a fixed size, the same on all ranks; what is in it counts on
        ``root`` alone. Or a list of arrays, which go as one; the result is then a list. With ``in_place``,
        which all ranks must say alike, it replaces ``array``, which is returned. Else the result is a new
        array, or ``out``, of the same shape and dtype::

            comm.broadcast(weights, in_place=True).wait()     # all begin with those of rank 0

        (In a Trio program: ``await comm.broadcast(weights, in_place=True)``; so for all calls.) With
        ``timeout``, in seconds, the work fails with ``OperationTimeout`` if it has not ended by then. Raises
        ``LocalMisuse`` for wrong arguments, before anything is sent, or the error that the job failed with;
        its wait raises that, and ``TensorMismatch`` on all ranks where they did not call the same.
        """
        collective = collectives.broadcast(array, root, out, in_place, self.rank, self.size)
        return self._start(collective, timeout, "broadcast")

    def all_gather(self, array: Any, *, out: Any = None, timeout: float | None = None) -> W:
        """Start an all-gather: every rank gets ``(size, *array.shape)``, row i from rank i, bit for bit.

        ``array``: any shape, any dtype of a fixed size, the same on all ranks::

            losses = comm.all_gather(loss).wait()             # a number of each rank

        ``out``: an array of that shape and dtype for the result. ``timeout`` and errors: see ``broadcast``.
        """
        return self._start(collectives.all_gather(array, out, self.rank, self.size), timeout, "all_gather")

    def reduce_scatter(
        self, array: Any, op: str = "sum", *, out: Any = None, timeout: float | None = None
    ) -> W:
        """Start a reduce-scatter: of ``(size, *shape)`` rank i gets the reduction of row i, ``shape``.

        Types and ``op`` are those of ``all_reduce``, and so are the bits of the result::

            mine = comm.reduce_scatter(gradients.reshape(comm.size, -1)).wait()    # this rank's part

        ``out``: an array of ``shape`` for the result. ``timeout`` and errors: see ``broadcast``.
        """
        collective = collectives.reduce_scatter(array, op, out, self.rank, self.size)
        return self._start(collective, timeout, "reduce_scatter")

    def reduce(
        self, array: Any, op: str = "sum", root: int = 0, *, out: Any = None, timeout: float | None = None
    ) -> W:
        """Start a reduction that rank ``root`` alone gets the result of; it is None on the others.

        Types and ``op`` are those of ``all_reduce``, and so are the bits of the result::

            worst = comm.reduce(seconds, "max").wait()        # on rank 0; None elsewhere

        ``out``: for ``root`` alone, an array like ``array`` for the result. ``timeout`` and errors: see
        ``broadcast``.
        """
        return self._start(collectives.reduce(array, op, root, out, self.rank, self.size), timeout, "reduce")

    def barrier(self, *, timeout: float | None = None) -> W:
        """Start a barrier, whose wait ends when all ranks have called it; the result is None.

        ::

            comm.barrier().wait()

        ``timeout`` and errors: see ``broadcast``.
        """
        return self._start(collectives.barrier(), timeout, "barrier")
