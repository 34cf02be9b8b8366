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
from inaproto.sim.campaign.worlds import WORDS
from inaproto.sim.frames.checkers import all_checkers

_FURTHER: Final = {
    "no part raises": "no core, NIC or checker raises an exception, whatever befalls it",
    "progress after healing": "once the weather and the faults are over, every job finishes in time",
    "no deadline without work": "who waits for nothing has no timer",
    "nothing is left": "once all jobs have ended, nothing happens any more and nobody holds anything",
    "nobody is to blame": "parts of one make never find one another breaking the protocol",
    "a parked ring sends nothing": "while no switch has a ring that moves its hosts begin no message on it",
    "a result is taken from its slot": "no host takes a result after it gave its links back",
    "a ring is of all ranks": "the ring that a host is told of names all its ranks of the job, and each once",
    "a fallback has a reason": "what hosts redo without a collective library is told with code and reason",
    "a plain flow arrives": "writes beside the rings arrive whole, whatever a link marks or loses",
    "a ring can be used": "a ring that a host is told of goes on where its operations are, by links that fit",
}
_OF_WORDS: Final = {
    "no part raises": "no core or checker raises an exception, whatever befalls it",
    "nobody is to blame": "cores of one make never find one another breaking the protocol",
    "no wait without deadline": "who waits has a timer",
    "no deadline without work": "a core that is woken does something, or has a later deadline",
}
_FURTHER_OF: Final = {
    WorldKind.CONTROL: {
        "every job ends": "once all is well again, every job is over in time",
        "every slot comes back": "and then no switch lends a slot to anybody, and no turn stands",
    },
    WorldKind.WEATHER: {
        "every job ends": "once all is well again, every job is over in time",
        "every slot comes back": "and then no switch lends a slot to anybody, and no turn stands",
    },
    WorldKind.TREES: {
        "every ring comes to stand": "once all is well again, each is where it is planned, by its own slots"
    },
    WorldKind.OVERLAY: {
        "a clock counts updates": "each clock of a worker is one more than that before it",
        "a request is answered once": "no request of a worker is answered that was not made, nor twice",
        "a worker resumes once": "a worker whose host has started is told once where it is",
        "nothing is refused without a reason": "no worker is refused a request but one that was removed",
        "every worker ends": "once all is well again, every worker that was not lost makes all its updates",
        "the tree is whole again": "and then every node is below its next living ancestor, with empty logs",
    },
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
    if kind not in WORDS:
        return rules()
    own = {one.name: (inspect.getdoc(type(one)) or "").rstrip(".") for one in WORDS[kind].checkers()}
    return own | _OF_WORDS | _FURTHER_OF[kind]
