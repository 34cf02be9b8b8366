"""Every rule that a world of trees is checked for, by name, with its meaning in a line."""

from __future__ import annotations

import inspect
from typing import Final

from inaproto.sim.trees.checkers import all_checkers

RULES: Final[dict[str, str]] = {
    **{checker.name: (inspect.getdoc(type(checker)) or "").rstrip(".") for checker in all_checkers()},
    "no part raises": "no core or checker raises an exception, whatever befalls it",
    "nobody is to blame": "cores of one make never find one another breaking the protocol",
    "no wait without deadline": "who waits has a timer",
    "no deadline without work": "a core that is woken does something, or has a later deadline",
    "every ring comes to stand": "once all is well again, each ring is where it is planned, by its own slots",
}
