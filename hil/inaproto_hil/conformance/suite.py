"""Runs the rules one after the other, and says which holds."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.events import AcceleratorConfig
from inaproto_hil.conformance.bench import Bench, Broken
from inaproto_hil.conformance.rules import RULES, Rule
from inaproto_hil.conformance.target import InProcess, Target
from inaproto_hil.rtl.equivalence.compare import Report
from inaproto_hil.rtl.parameters import Parameters


@dataclass(frozen=True)
class Verdict:
    rule: Rule
    broken: Report | None
    """What is wrong; None: it holds."""
    frames: int
    """That came in."""
    wall_s: float


def golden(limits: Parameters) -> InProcess:
    """The software core as a target: every rule holds for it."""
    config = AcceleratorConfig(early_packets_max=0, addresses_max=limits.addresses)
    return InProcess("the software core", Accelerator(config), limits)


def rules_of(seed: int, frames: int) -> list[Rule]:
    """All rules, from the plainest on, and random traffic of so many frames in the end."""

    async def random(bench: Bench) -> None:
        await bench.random(seed, frames)

    hosts = Rule("Hosts say where they are, which is flooded", "protocol 6.11", Bench.begin)
    traffic = Rule(f"Random traffic under faults as the software core (seed {seed})", "all", random)
    return [hosts, *RULES, *([traffic] if frames else [])]


async def judge(target: Target, rules: Sequence[Rule]) -> AsyncIterator[Verdict]:
    """Every rule, those after a broken one too: each has rings of its own.

    Raises ``FabricError`` where the target is gone, or frames do not reach it.
    """
    bench = Bench(target, golden(target.limits))
    for rule in rules:
        began = time.monotonic()
        broken = None
        try:
            await bench.run(rule.check)
        except Broken as error:
            broken = error.report
        yield Verdict(rule, broken, bench.frames_in, time.monotonic() - began)
