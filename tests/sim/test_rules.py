from __future__ import annotations

import re
from pathlib import Path

from inaproto.sim.campaign.kinds import WORD_KINDS, WorldKind
from inaproto.sim.campaign.rules import rules, rules_of

ROOT = Path(__file__).parents[2]


def test_every_rule_that_is_raised_has_a_meaning() -> None:
    raised = set()
    for path in sorted((ROOT / "inaproto/sim").rglob("*.py")):
        source = path.read_text()
        raised |= set(re.findall(r'Violated\(\s*"([^"]+)"', source))
        raised |= set(re.findall(r'_violation\("([^"]+)"', source))
    assert len(raised) >= 5
    assert raised <= set(rules()).union(*(rules_of(kind) for kind in WORD_KINDS))
    assert all(rules().values())


def test_the_documentation_names_every_rule() -> None:
    text = (ROOT / "docs/simulation.md").read_text()
    table = text.partition("| Rule | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == set(rules())
    for kind, name in (
        (WorldKind.CONTROL, "control worlds"),
        (WorldKind.TREES, "worlds of trees"),
        (WorldKind.OVERLAY, "overlay worlds"),
    ):
        table = text.partition(f"| Rule of {name} | |")[2].partition("\n\n")[0]
        assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == set(rules_of(kind))
