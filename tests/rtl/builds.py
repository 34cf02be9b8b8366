"""Simulations of the whole RTL for tests: which sizes, and what to do where they cannot be built."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from inaproto.errors import Unsupported
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.verilated.build import build_accelerator, missing_tools
from tests.conftest import end_without

SMALL = Parameters(ports=3, words=2, rings=2, children=3, window=2, slots=64, mtu=64)
"""Built in some 20 s: tables overflow and windows wrap soon."""
MANY_PORTS = Parameters(ports=8, words=2, rings=4, children=5, window=4, slots=256, mtu=64)
"""For rings as tests of the software switch make them."""
IN_TREES = replace(MANY_PORTS, trees=8)
"""The same, as one switch of a tree."""
LARGER = Parameters(ports=4, words=4, rings=2, children=4, window=4, slots=128, mtu=256)


@cache
def library(parameters: Parameters) -> Path:
    """The simulation of that size; skips the test where it cannot be built."""
    needs_tools()
    return build_accelerator(parameters)


def needs_tools() -> None:
    """End the test where the RTL cannot be built, with what is missing."""
    missing = missing_tools()
    if missing:
        end_without("rtl", Unsupported("the RTL", f"{', '.join(missing)} is missing; make rtl gets packages"))
