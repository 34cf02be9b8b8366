"""All checks in the order in which to mend them: what is below first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

from inaproto.doctor import (
    certificates,
    daemons,
    ethernet,
    firewall,
    limits,
    lossless,
    pacing,
    reach,
    software,
)
from inaproto.doctor.findings import Check, Finding, Outcome
from inaproto.doctor.site import Site
from inaproto.errors import Unsupported

CHECK_GROUP: Final = "inaproto.checks"
"""Entry points: a sequence of :class:`Check` each."""

_BELOW: Final = (software.PYTHON, limits.DESCRIPTORS, limits.MEMORY, limits.PTRACE, limits.SOCKET_BUFFERS)
_ABOVE: Final = (
    ethernet.LINK,
    ethernet.MTU,
    ethernet.PAUSE,
    ethernet.OFFLOADS,
    lossless.PFC,
    lossless.ECN,
    lossless.TRUST,
    reach.ROUTE,
    reach.NEIGHBOUR,
    reach.SUBNETS,
    firewall.FIREWALL,
    daemons.UNITS,
    certificates.CERTIFICATES,
    daemons.DAEMONS,
    daemons.CONTROLLER,
    daemons.PATH_MTUS,
    daemons.VERSIONS,
    daemons.PATHS,
    pacing.WINDOW,
    pacing.TIMEOUT,
)


@dataclass(frozen=True, slots=True)
class Answer:
    check: Check
    findings: Sequence[Finding]


def all_checks() -> list[Check]:
    """Ours, and between them those that adapters announce. Raises ``Unsupported`` for what is none."""
    announced: list[Check] = []
    for entry in sorted(entry_points(group=CHECK_GROUP), key=lambda one: one.name):
        checks = entry.load()
        if not all(isinstance(check, Check) for check in checks):
            raise Unsupported(f"checks {entry.name!r}", f"{entry.value} is no sequence of checks")
        announced += checks
    return [*_BELOW, *announced, *_ABOVE]


def examine(site: Site, checks: Iterable[Check]) -> list[Answer]:
    return [Answer(check, tuple(check.look(site))) for check in checks]


def has_failed(answers: Iterable[Answer]) -> bool:
    return any(found.outcome is Outcome.FAILED for answer in answers for found in answer.findings)
