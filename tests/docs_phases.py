"""State diagrams of cores, drawn from their tables of handlers.

``python -m tests.docs_phases`` writes the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from inaproto.core.contract import Handlers
from inaproto.core.rendezvous.events import RendezvousConfig
from inaproto.core.rendezvous.fabric.control import TreeControl
from inaproto.core.rendezvous.fabric.events import TreeControlConfig
from inaproto.core.rendezvous.rendezvous import Rendezvous
from tests.unit.test_tree_control import fabric

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "phases.md"
_HEAD: Final = """\
# Phases of the control plane

What an event that is about one job, or one ring, may lead to, drawn from the tables of handlers in the
cores; and, in words, what concerns many at once. A black dot at the end: it is forgotten.

`python -m tests.docs_phases` writes this page.
"""


JOBS: Final = {
    ("joining", "[*]"): "time passes",
    ("connecting", "halted"): "a host is away",
    ("running", "halted"): "a host is away, a return to the switches, a wish of a controller",
    ("halted", "[*]"): "time passes, a host daemon was started anew",
}
RINGS: Final = {
    ("waiting", "installing"): "its switches and trunks are there",
    ("waiting", "failed"): "time passes",
    ("installing", "failed"): "a switch or trunk is lost",
    ("standing", "failed"): "a switch or trunk is lost",
}
"""What concerns many at once leads there, and is in no table of handlers."""


def diagram(table: Handlers[Any, Any, Any], first: Enum, many: Mapping[tuple[str, str], str]) -> str:
    """In Mermaid; an arrow for each pair of phases, with all events that may lead along it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for phase, event in table:
        for to in table.leads_to(phase, event):
            ends = phase.value, "[*]" if to is None else to.value
            arrows.setdefault(ends, []).append(event.__name__)
    for pair, words in many.items():
        arrows.setdefault(pair, []).append(words)
    lines = [f"    {start} --> {end}: {', '.join(events)}" for (start, end), events in sorted(arrows.items())]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}", *lines, "```"])


def page() -> str:
    rendezvous = Rendezvous(RendezvousConfig()).handlers
    trees = TreeControl(TreeControlConfig(fabric(), {})).handlers
    parts = [
        _HEAD,
        "## A job (`inaproto/core/rendezvous/rendezvous.py`)",
        diagram(rendezvous, next(iter(rendezvous))[0], JOBS),
        "## A ring in the switches of a fabric (`inaproto/core/rendezvous/fabric/control.py`)",
        diagram(trees, next(iter(trees))[0], RINGS),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
