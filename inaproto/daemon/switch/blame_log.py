"""Blames of an accelerator, counted by rule and logged now and then."""

from __future__ import annotations

import logging
from typing import Final

import trio

from inaproto.errors import Blame

log = logging.getLogger("inaproto.switch")

BLAME_LOG_S: Final = 1.0
"""A rule that is broken again and again is logged this often."""
BLAME_RULES_MAX: Final = 256


class BlameLog:
    """Counts blames by rule, and logs each rule at most every ``BLAME_LOG_S``."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._silent_until: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def add(self, blame: Blame) -> None:
        rule = blame.rule if blame.rule in self._counts or len(self._counts) < BLAME_RULES_MAX else "others"
        self._counts[rule] = self._counts.get(rule, 0) + 1
        now = trio.current_time()
        if now < self._silent_until.get(rule, now):
            self._unsaid[rule] = self._unsaid.get(rule, 0) + 1
            return
        self._silent_until[rule] = now + BLAME_LOG_S
        unsaid = self._unsaid.pop(rule, 0)
        log.warning("%s%s", blame, f" (and {unsaid} more like it)" if unsaid else "")

    def counts(self) -> dict[str, int]:
        return dict(self._counts)
