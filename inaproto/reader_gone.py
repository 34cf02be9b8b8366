"""What becomes of a command whose output nobody reads any more, as with ``| head``: it ends as it would."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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


def _to_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # else the interpreter complains when it ends
    os.close(nowhere)
