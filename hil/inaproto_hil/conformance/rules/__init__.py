"""The rules, from the plainest on: each is a name, where it is written, and packets with what must leave.

"6.4" is a section of docs/protocol.md, "3.1" one of NetReduce, as the titles say.
"""

from __future__ import annotations

from typing import Final

from inaproto_hil.conformance.rules import aggregation, bridging, losses, refusals, several_rings, sums
from inaproto_hil.conformance.rules.rule import Rule

RULES: Final[list[Rule]] = [
    *bridging.rule.all,
    *aggregation.rule.all,
    *sums.rule.all,
    *losses.rule.all,
    *refusals.rule.all,
    *several_rings.rule.all,
]

__all__ = ["RULES", "Rule"]
