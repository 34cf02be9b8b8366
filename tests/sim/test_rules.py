from __future__ import annotations

import re
from pathlib import Path

from inaproto.sim.campaign.rules import rules
from inaproto.sim.control.rules import RULES as CONTROL_RULES
from inaproto.sim.models.rules import RULES as OVERLAY_RULES
from inaproto.sim.trees.rules import RULES as TREES_RULES

ROOT = Path(__file__).parents[2]


def test_every_rule_that_is_raised_has_a_meaning() -> None:
    raised = set()
    for path in sorted((ROOT / "inaproto/sim").rglob("*.py")):
        source = path.read_text()
        raised |= set(re.findall(r'Violated\(\s*"([^"]+)"', source))
        raised |= set(re.findall(r'_violation\("([^"]+)"', source))
    assert len(raised) >= 5
    assert raised <= set(rules()) | set(CONTROL_RULES) | set(OVERLAY_RULES) | set(TREES_RULES)
    assert all(rules().values())


def test_the_documentation_names_every_rule() -> None:
    text = (ROOT / "docs/simulation.md").read_text()
    table = text.partition("| Rule | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == set(rules())
    table = text.partition("| Rule of control worlds | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == set(CONTROL_RULES)
    table = text.partition("| Rule of worlds of trees | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == set(TREES_RULES)
    table = text.partition("| Rule of overlay worlds | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) == set(OVERLAY_RULES)
