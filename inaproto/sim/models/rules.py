"""Every rule that an overlay world is checked for, by name, with its meaning in a line."""

from __future__ import annotations

import inspect
from typing import Final

from inaproto.sim.models.checkers import all_checkers

RULES: Final[dict[str, str]] = {
    **{checker.name: (inspect.getdoc(type(checker)) or "").rstrip(".") for checker in all_checkers()},
    "no part raises": "no core or checker raises an exception, whatever befalls it",
    "nobody is to blame": "cores of one make never find one another breaking the protocol",
    "a clock counts updates": "each clock of a worker is one more than that before it",
    "a request is answered once": "no request of a worker is answered that was not made, nor twice",
    "a worker resumes once": "a worker whose host has started is told once where it is",
    "nothing is refused without a reason": "no request of a worker is refused but of one that was removed",
    "no wait without deadline": "somebody waits, and something will happen",
    "no deadline without work": "a core that is woken does something, or has a later deadline",
    "every worker ends": "once all is well again, every worker that was not lost makes all its updates",
    "the tree is whole again": "and then every node is below its next living ancestor, with empty logs",
}
