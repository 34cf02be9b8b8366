"""On which CPUs a host daemon runs: those that its settings name, or those near its NIC.

Only the thread of the event loop is bound, which serves the NIC. Threads that add for the ranks of this host
(:mod:`inaproto.daemon.host.adding`) may run wherever the process might before: its ranks are anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from inaproto.daemon.settings.cpus import ALL, AUTO, format_cpus, parse_cpus
from inaproto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the event loop runs, and why there."""

    cpus: frozenset[int]
    everywhere: frozenset[int]
    """Those that the process may use."""
    why: str

    def status(self) -> dict[str, str]:
        """For ``inaproto status``."""
        return {"cpus": format_cpus(self.cpus), "why": self.why if self.is_bound else ""}

    @property
    def is_bound(self) -> bool:
        """To fewer than there are."""
        return self.cpus != self.everywhere

    def elsewhere(self, run: Callable[[], object]) -> Callable[[], object]:
        """``run`` for another thread, which begins bound as this one is."""
        if not self.is_bound:
            return run

        def unbound() -> None:
            if os.sched_getaffinity(0) != self.everywhere:
                os.sched_setaffinity(0, self.everywhere)
            run()

        return unbound


def unbound() -> Placement:
    """As the process was started."""
    everywhere = frozenset(os.sched_getaffinity(0))
    return Placement(everywhere, everywhere, "")


def place(wish: str) -> Placement:
    """Bind this thread to the CPUs wished for; ``auto:0-3`` is to those near the NIC, ``auto`` to none.

    Raises ``ConfigError`` for CPUs that this process may not use.
    """
    everywhere = frozenset(os.sched_getaffinity(0))
    asked, _, near = wish.partition(":")
    if asked == ALL:
        return Placement(everywhere, everywhere, "asked for")
    if asked == AUTO:
        cpus, why = (parse_cpus(near) & everywhere if near else everywhere), "near the NIC"
        if not near or not cpus:
            return Placement(everywhere, everywhere, "nothing says which are near the NIC")
    else:
        cpus, why = parse_cpus(asked), "asked for"
        if not cpus <= everywhere:
            others = format_cpus(cpus - everywhere)
            raise ConfigError(f"cpus: {others}: this process may use {format_cpus(everywhere)} alone")
    if cpus != everywhere:
        os.sched_setaffinity(0, cpus)
    return Placement(cpus, everywhere, why)
