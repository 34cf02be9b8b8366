"""What is measured of a block at a size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amaranth.hdl._nir import CombinationalCycle

from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.synthesis.blocks import BLOCKS, TOP
from inaproto_hil.rtl.synthesis.clock import Effort, Placed, placed
from inaproto_hil.rtl.synthesis.hygiene import violations_of
from inaproto_hil.rtl.synthesis.resources import Resources, synthesised
from inaproto_hil.rtl.synthesis.tools import ToolFailed, to_rtlil


@dataclass(slots=True)
class Row:
    """What is known of a block at some size."""

    block: str
    parameters: Parameters
    family: str
    violations: list[str] = field(default_factory=list)
    resources: Resources | None = None
    effort: Effort | None = None
    """What ``placed`` was asked with."""
    placed: Placed | None = None
    cpu_seconds: float = 0.0
    """Of Amaranth, synthesis, placing and routing, when they ran."""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    blocks: tuple[str, ...]
    family: str
    sizes: tuple[Parameters, ...]
    seed: int
    limit_s: float
    memories_only: bool
    place: bool
    placer: str | None = None
    router: str | None = None
    """None, of either: what does for the block."""

    def effort(self, block: str) -> Effort:
        """Blocks are faster when packed; the whole is not routed unless it is spread."""
        usual = Effort(placer="static", router="router2") if block == TOP else Effort()
        placer, router = self.placer or usual.placer, self.router or usual.router
        return replace(usual, seed=self.seed, placer=placer, router=router)


def measure(
    asked: Asked,
    name: str,
    sizes: Parameters,
    *,
    cache: Path | None = None,
    on_step: Callable[[str], None] = lambda _step: None,
) -> Row:
    """Raises ``Unsupported`` where there is no such block, or no tool. ``on_step`` learns where tools are."""
    row = Row(name, sizes, asked.family)
    begun = time.process_time()
    limited: dict[str, Any] = {"cache": cache, "limit_s": asked.limit_s}
    try:
        text = to_rtlil(BLOCKS[name](sizes), None, "top")
        row.cpu_seconds = time.process_time() - begun
        on_step("looking for what must not be there")
        row.violations = violations_of(text, **limited)
        on_step("synthesis")
        row.resources, seconds = synthesised(
            text, "top", asked.family, memories_only=asked.memories_only, **limited
        )
        row.cpu_seconds += seconds
        if asked.place and asked.family == "ecp5" and not asked.memories_only:
            row.effort = asked.effort(name)
            row.placed, seconds = placed(
                BLOCKS[name](sizes), None, effort=row.effort, on_step=on_step, **limited
            )
            row.cpu_seconds += seconds
    except CombinationalCycle as error:
        row.violations = [f"combinational loop: {' '.join(str(error).split())}"]
    except ToolFailed as error:
        row.failed = str(error)
    row.cpu_seconds = round(row.cpu_seconds, 2)
    return row
