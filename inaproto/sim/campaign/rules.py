"""Every rule that a world is checked for, by name, with its meaning in a line.

Taken from the checkers themselves: a checker's ``name`` and the first sentence of its module. The rules that
the world's own loop demands, and the further ones that a checker's hooks know, are listed here; a test
finds any that is raised somewhere and has no line.
"""

from __future__ import annotations

import inspect
import sys
from typing import Final

from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.control.rules import RULES as CONTROL_RULES
from inaproto.sim.frames.checkers import all_checkers
from inaproto.sim.models.rules import RULES as OVERLAY_RULES
from inaproto.sim.trees.rules import RULES as TREES_RULES

_FURTHER: Final = {
    "no part raises": "no core, NIC or checker raises an exception, whatever befalls it",
    "progress after healing": "once the weather and the faults are over, every job finishes in time",
    "no deadline without work": "who waits for nothing has no timer",
    "nothing is left": "once all jobs have ended, nothing happens any more and nobody holds anything",
    "nobody is to blame": "parts of one make never find one another breaking the protocol",
    "a parked ring sends nothing": "while no switch has a ring that moves its hosts begin no message on it",
    "a ring is of all ranks": "the ring that a host is told of names all its ranks of the job, and each once",
    "a ring can be used": "a ring that a host is told of goes on where its operations are, by links that fit",
}


def rules() -> dict[str, str]:
    """Meaning by name, the checkers' in their order."""
    found = {}
    for checker in all_checkers():
        doc = inspect.getdoc(sys.modules[type(checker).__module__]) or ""
        found[checker.name] = " ".join(doc.partition("\n\n")[0].split()).rstrip(".")
    return found | _FURTHER


def rules_of(kind: WorldKind) -> dict[str, str]:
    """Those that a campaign of such worlds checks."""
    if kind is WorldKind.OVERLAY:
        return dict(OVERLAY_RULES)
    if kind is WorldKind.TREES:
        return dict(TREES_RULES)
    return dict(CONTROL_RULES) if kind is WorldKind.CONTROL else rules()
