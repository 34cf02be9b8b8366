"""What time it is for the cores."""

from __future__ import annotations

import trio

from inaproto.units import Instant, S


def now() -> Instant:
    return Instant(int(trio.current_time() * S))
