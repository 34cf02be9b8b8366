"""The double of libsharp_coll (``tests/doubles`` of the source tree), built once for each content.

It is no SHARP: nothing that it does says anything of switches.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto_adapters.sharp.abi import compiler
from inaproto_adapters.sharp.library import SharpLibrary

FOLDER: Final = Path(__file__).parents[3] / "tests" / "doubles"
AM: Final = "SHARP_DOUBLE_AM"
"""Variable with the path of what all processes that use the double share."""
FLAGS: Final = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread", "-ffp-contract=off")
SECONDS_MAX: Final = 600
NEVER: Final = 1
"""Of ``complete``: it never does; 2: with a wrong bit; 1000 + n: after n ms."""
WRONG: Final = 2
LATE: Final = 1000
HANGS: Final = 999
"""Of any call: it takes ``hang_ms``."""


def build() -> Path:
    """The shared object for the sources as they are. Raises ``Unsupported`` without these or a C compiler."""
    cc = compiler()
    parts = sorted(FOLDER.rglob("*.[ch]"))
    if not parts:
        raise Unsupported("the double of libsharp_coll", "its source is in a checkout: run this from one")
    digest = sha256(b"".join(part.read_bytes() for part in parts) + str(FLAGS).encode()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"inaproto-doubles-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    library = place / f"libsharp_coll-{digest}.so"
    if not library.exists():
        scratch = library.with_suffix(f".{os.getpid()}")
        command = [*cc, *FLAGS, f"-I{FOLDER}", "-o", str(scratch), str(FOLDER / "sharp_coll.c")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if done.returncode:
            raise Unsupported("the double of libsharp_coll", done.stderr.strip()[:500])
        scratch.replace(library)
    return library


class Double:
    """The library, and what is set and asked beside its interface."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library: Any = ctypes.CDLL(str(path))
        self.library = SharpLibrary(self._library, str(path))
        self._library.sharp_double_begin()

    def set(self, **settings: int) -> None:
        """``preset`` 0 before 3.0, 1 HDR, 2 NDR; ``capacity`` of a port; ``lock_mode`` 1: per operation;
        ``lost``: a switch or port, whose jobs' operations fail."""
        for key, value in settings.items():
            assert self._library.sharp_double_set(key.encode(), ctypes.c_int64(value)) == 0, key

    def inject(self, function: str, code: int, *, rank: int = -1, nth: int = 0) -> None:
        """The n-th call of a rank ends so; by default each call of each."""
        name = f"sharp_coll_{function}" if function != "complete" else function
        assert self._library.sharp_double_inject(name.encode(), rank, nth, code) == 0

    def heal(self) -> None:
        """Nothing goes wrong any more, and calls are counted anew."""
        self._library.sharp_double_inject(b"", -1, 0, 0)

    def place(self, device: str, ids: list[int]) -> None:
        """Jobs of that device use these switches, or ports."""
        assert (
            self._library.sharp_double_place(device.encode(), len(ids), (ctypes.c_int * len(ids))(*ids)) == 0
        )

    def count(self, what: str) -> int:
        """``contexts``, ``regions``, ``requests`` of this process, ``jobs`` of all, or a function's calls."""
        found: int = self._library.sharp_double_count(what.encode())
        return found

    def left(self) -> dict[str, int]:
        """What is held."""
        return {what: self.count(what) for what in ("contexts", "regions", "requests", "jobs")}


NOTHING: Final = {"contexts": 0, "regions": 0, "requests": 0, "jobs": 0}
