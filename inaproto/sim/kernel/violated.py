"""A rule of a world is broken."""

from __future__ import annotations


class Violated(Exception):
    """A rule is broken. ``rule`` is a stable short name, ``evidence`` says who and what."""

    def __init__(self, rule: str, evidence: str) -> None:
        super().__init__(f"{rule}: {evidence}")
        self.rule = rule
        self.evidence = evidence
