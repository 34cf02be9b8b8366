"""Tests of RoCE hosts of a kernel, in guests that are emulated: slow, and slower where a machine is busy."""

from __future__ import annotations

from typing import Final

HANG_S: Final = 4 * 3600
"""For tests that hang in spite of the limits of guests, which say more."""
