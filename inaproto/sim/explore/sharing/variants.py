"""The sharing groups that can be explored by name, each with a size, and what the search finds at that size.

The two rules of the product must hold at every size. The others are MINA section IV-B read literally, or the
product without one of its parts: each has a run that shows what the part is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from inaproto.core.sharing.events import (
    FromCoordinator,
    ParticipantAction,
    ParticipantConfig,
    ParticipantEvent,
    Woke,
)
from inaproto.core.sharing.participant import Phase, SharingParticipant
from inaproto.errors import ConfigError
from inaproto.sim.explore.sharing.config import RANGES, SharingWorldConfig
from inaproto.sim.explore.sharing.world import SharingWorld
from inaproto.units import Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import Decision, Prepare, Rule, Version


class PaperParticipant(SharingParticipant):
    """Waits for the lock, and for the coordinator, for ever."""

    @property
    def deadline(self) -> Instant | None:
        return None

    def step(self, event: ParticipantEvent, now: Instant) -> list[ParticipantAction]:
        is_prepare = isinstance(event, FromCoordinator) and isinstance(event.message, Prepare)
        if isinstance(event, Woke) or (is_prepare and self._phase is Phase.LOCKED):
            return []
        return super().step(event, now)


class StatusParticipant(SharingParticipant):
    """Uses INA whenever nobody else does, as far as it was told by the last commit."""

    def __init__(self, config: ParticipantConfig) -> None:
        super().__init__(config)
        self._user: JobId | None = None

    def _apply(self, version: Version, decision: Decision) -> list[ParticipantAction]:
        self._user = None if decision.granted is None else decision.granted.job
        return super()._apply(version, decision)

    def _epoch_for(self, index: OpIndex) -> Epoch | None:
        return Epoch(0) if self._user in (None, self._seat.job) else None


@dataclass(frozen=True, slots=True)
class SharingVariant:
    name: str
    text: str
    sizes: Mapping[str, Any]
    shows: str
    parts: Mapping[str, Any]


SHARING_VARIANTS: Final[Mapping[str, SharingVariant]] = {
    variant.name: variant
    for variant in (
        SharingVariant(
            "by-index",
            "the product: decisions name the operation from which they hold",
            {"hosts": 1, "losses": 1, "operations": 1},
            "holds",
            {"rule": Rule.BY_INDEX},
        ),
        SharingVariant(
            "equal-index",
            "the product, with the paper's rule",
            {"hosts": 1, "operations": 1, "losses": 1, "rounds": 1},
            "holds",
            {"rule": Rule.EQUAL_INDEX},
        ),
        SharingVariant(
            "paper",
            "the paper's rule; a seat waits for the coordinator for ever",
            {"jobs": 1, "hosts": 1, "operations": 1, "crashes": 1, "turns": 1, "rounds": 1},
            "stuck: the coordinator crashes after a vote, and its seat is locked for ever",
            {"rule": Rule.EQUAL_INDEX, "participant": PaperParticipant},
        ),
        SharingVariant(
            "paper-status",
            "hosts use INA when nobody else does, which they are told after the fact",
            {"hosts": 1},
            "broken: two jobs start at once, L2",
            {"rule": Rule.EQUAL_INDEX, "participant": StatusParticipant},
        ),
        SharingVariant(
            "no-persist",
            "commits leave before they are durable",
            {"hosts": 1, "crashes": 1},
            "broken: a restarted coordinator gives the turn to another job, L2",
            {"rule": Rule.BY_INDEX, "waits_for_log": False},
        ),
    )
}


def sharing_config(variant: str, **sizes: int | None) -> SharingWorldConfig:
    """``sizes`` that are None are the variant's. Raises ``ConfigError``."""
    if variant not in SHARING_VARIANTS:
        raise ConfigError(f"variant {variant!r} does not exist: use one of {', '.join(SHARING_VARIANTS)}")
    found = SHARING_VARIANTS[variant]
    given = {name: value for name, value in sizes.items() if value is not None}
    strange = [name for name in given if name not in RANGES and name not in _FIELDS]
    if strange:
        raise ConfigError(f"{strange[0]} is no size of a sharing group")
    return SharingWorldConfig(**{**found.sizes, **found.parts, **given})


_FIELDS: Final = frozenset(field.name for field in fields(SharingWorldConfig))


def sharing_world(variant: str, **sizes: int | None) -> SharingWorld:
    return SharingWorld(sharing_config(variant, **sizes))
