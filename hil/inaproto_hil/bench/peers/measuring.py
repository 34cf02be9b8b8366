"""Rounds of ``inaproto bench peers``: in each, every contender has one turn; who begins changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from inaproto.errors import Unsupported
from inaproto_hil.bench.comparison import turns
from inaproto_hil.bench.peers.config import BEFORE, FLOAT_BYTES, Config
from inaproto_hil.bench.peers.contenders import Contender, ContenderCluster, open_contenders
from inaproto_hil.bench.peers.figures import Entry, TurnResult, entry_of
from inaproto_hil.bench.peers.tools import Tools
from inaproto_hil.ranks.stepping import TurnPlan
from inaproto_hil.rigs.environment import machine_cpu_s


def measure(
    config: Config,
    tools: Tools,
    versions: dict[str, str],
    on_turn: Callable[[str], None],
    on_entry: Callable[[Entry], None],
) -> None:
    """All sizes, at one number of hosts. Who takes part is put into ``versions``.

    Raises ``Unsupported`` if nobody does, ``ClusterError`` if one of their processes fails.
    """
    with ExitStack() as stack:
        on_turn("starting")
        contenders = {found.name: found for found in open_contenders(config, tools, stack)}
        if not contenders:
            raise Unsupported("a contender", f"none of {', '.join(config.only)} can be had here")
        if config.busy:
            _start_busy(config, stack)
        versions |= {name: one.version for name, one in contenders.items()}
        number = 1
        for size in config.sizes:
            warm_ups = {}
            for name, contender in contenders.items():
                on_turn(f"{config.hosts} hosts, {size} B: warm-up, {name}")
                _, number = _turn(config, contender, size, 1, number)
                warm_ups[name], number = _turn(config, contender, size, 1, number)
            found: dict[str, list[TurnResult]] = {name: [] for name in contenders}
            for round_ in range(config.rounds):
                for name in turns(list(contenders), round_):
                    on_turn(f"{config.hosts} hosts, {size} B: round {round_ + 1}, {name}")
                    operations = config.operations(size, warm_ups[name].seconds)
                    result, number = _turn(config, contenders[name], size, operations, number)
                    found[name].append(result)
            for name, results in found.items():
                of = config.of_before() if name == BEFORE else config
                on_entry(entry_of(of, name, size, results, warm_ups[name]))


def _turn(
    config: Config, contender: Contender, size: int, operations: int, number: int
) -> tuple[TurnResult, int]:
    """``number``: all-reduces before it. Returns it with those of this turn."""
    plan = TurnPlan(size // FLOAT_BYTES, operations, config.group, number)
    fields = {"elements": plan.elements, "operations": operations, "group": plan.group, "first": number}
    ranks, timeout_s = contender.ranks, config.timeout_s
    ranks.ask("prepare", fields, "ready", timeout_s=0)
    resent_before, machine_before, cpu_before = contender.resent(), machine_cpu_s(), contender.cpu_s()
    began = time.monotonic()
    done = ranks.ask("go", {}, "done", timeout_s=timeout_s * (operations + 1))
    whole_s, machine_s = time.monotonic() - began, machine_cpu_s() - machine_before
    cpu_s = {kind: now - cpu_before[kind] for kind, now in contender.cpu_s().items()}
    cpu_s["ranks"] = sum(one["cpu_s"] for one in done)
    resent = contender.resent()
    checked = ranks.ask("check", {}, "checked", timeout_s=0)
    result = TurnResult(
        operations=operations,
        seconds=max(one["seconds"] for one in done),
        cpu_s=cpu_s,
        machine_cpu_s=machine_s,
        whole_s=whole_s,
        nbytes=operations * size + plan.lead_in * FLOAT_BYTES,
        resent=None if resent is None or resent_before is None else resent - resent_before,
        wrong=sum(one["wrong"] for one in checked),
        example=next((f"{contender.name}: {one['example']}" for one in checked if one["example"]), ""),
        path="+".join(sorted({one["path"] for one in checked if one["path"]})),
    )
    return result, number + operations + 1


def _start_busy(config: Config, stack: ExitStack) -> None:
    cluster = stack.enter_context(ContenderCluster(config, None, []))
    words = [sys.executable, "-m", "inaproto_hil.bench.peers.busy"]
    for number in range(config.busy):
        cluster.rank(f"busy{number}", words)
