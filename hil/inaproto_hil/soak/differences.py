"""Failures that are others when their seeds are run again: then a world is not determined.

A world is the same in every run. Compared is what broke, and where; the words of an exception may differ.
"""

from __future__ import annotations

from collections.abc import Iterable

from inaproto.sim.kernel.violated import Violation
from inaproto_hil.soak.block import Told
from inaproto_hil.soak.tally import Failure


def differences(failures: Iterable[Failure], told: Iterable[Told]) -> dict[int, str]:
    """What the run that failed shows, and what the one that was told did instead, by seed."""
    again = {one.seed: one.violation for one in told}
    return {
        failure.seed: f"in the campaign: {_say(failure)}; run again: {_say(again[failure.seed])}"
        for failure in failures
        if failure.seed in again and _what(failure) != _what(again[failure.seed])
    }


def _what(broken: Failure | Violation | None) -> tuple[str, int, int] | None:
    return None if broken is None else (broken.rule, broken.event, broken.at_ns)


def _say(broken: Failure | Violation | None) -> str:
    return "no rule broken" if broken is None else f"{broken.rule} at event {broken.event}: {broken.evidence}"
