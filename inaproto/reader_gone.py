"""What becomes of a command whose output nobody takes.

Where nobody reads it any more, as with ``| head``, the command ends as it would. Where it has no room, as on
a full disk, that is said.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


@contextmanager
def unread() -> Iterator[None]:
    """Around what is printed when the work is done: the rest of it goes nowhere once the reader is gone.

    Rich makes an exit of a broken pipe, with status 1; other exits pass.
    """
    try:
        yield
    except BrokenPipeError:
        _to_nowhere()
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        _to_nowhere()


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def why_not_written(error: BaseException) -> OSError | None:
    """Why standard output does not take what a command writes, which has ended by ``error``; None: it takes
    it, or nobody reads it. What it has not taken is given up."""
    if sys.stdout is None or sys.stdout.closed:
        return None
    try:
        sys.stdout.flush()  # what a write that failed has left behind fails again
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            os.write(sys.stdout.fileno(), b"\n")  # where there is no buffer nothing was left behind
    except OSError as refused:
        _to_nowhere()
        return None if isinstance(refused, BrokenPipeError) else refused
    return None


def _to_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # else the interpreter complains when it ends
    os.close(nowhere)
