"""Worlds whose subject is what nodes say, not frames. They have one log and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from inaproto.errors import ConfigError
from inaproto.faults.streams import Seed
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.control.config import ControlConfig
from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.world import ControlResult, ControlWorld
from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.models.config import OverlayConfig
from inaproto.sim.models.drawing import draw_overlay
from inaproto.sim.models.world import OverlayResult, OverlayWorld
from inaproto.sim.trees.config import TreesConfig
from inaproto.sim.trees.drawing import draw_trees
from inaproto.sim.trees.world import TreesResult, TreesWorld

if TYPE_CHECKING:
    from inaproto.sim.campaign.word_log import ControlRecorder

WordsConfig = ControlConfig | TreesConfig | OverlayConfig
WordsResult = ControlResult | TreesResult | OverlayResult


def world_of(
    config: WordsConfig, *, fates: LinkFates | None = None, recorder: ControlRecorder | None = None
) -> ControlWorld | TreesWorld | OverlayWorld:
    """``fates``: those of a log, to be replayed."""
    match config:
        case OverlayConfig():
            return OverlayWorld(config, fates=fates, recorder=recorder)
        case TreesConfig():
            return TreesWorld(config, fates=fates, recorder=recorder)
        case ControlConfig():
            return ControlWorld(config, fates=fates, recorder=recorder)
        case _:
            assert_never(config)


def kind_of_words(config: WordsConfig) -> WorldKind:
    match config:
        case OverlayConfig():
            return WorldKind.OVERLAY
        case TreesConfig():
            return WorldKind.TREES
        case ControlConfig():
            return WorldKind.CONTROL
        case _:
            assert_never(config)


def draw_words(seed: Seed, kind: WorldKind) -> WordsConfig:
    """The world of ``seed``, of a kind that is not of ``FRAME_KINDS``."""
    if kind is WorldKind.TREES:
        return draw_trees(seed)
    return draw_overlay(seed) if kind is WorldKind.OVERLAY else draw_control(seed)


def config_from(kind: str, record: Any) -> WordsConfig:
    """Raises ``ConfigError``."""
    if kind == WorldKind.OVERLAY:
        return OverlayConfig.from_record(record)
    if kind == WorldKind.TREES:
        return TreesConfig.from_record(record)
    if kind == WorldKind.CONTROL:
        return ControlConfig.from_record(record)
    raise ConfigError(f"event log: there is no world {kind!r} of words")
