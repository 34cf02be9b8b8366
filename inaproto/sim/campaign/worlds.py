"""All worlds of words in one table, and what is drawn, read and asked alike of a world of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inaproto.errors import ConfigError
from inaproto.faults.streams import Seed
from inaproto.sim.campaign.kinds import WorldKind, draw_kind, kind_of
from inaproto.sim.control import shrink as control
from inaproto.sim.control.checkers.checkers import all_checkers as control_checkers
from inaproto.sim.control.config import ControlConfig, WeatherConfig
from inaproto.sim.control.day import draw_day
from inaproto.sim.control.drawing import draw_control
from inaproto.sim.control.marks import DECLARED as CONTROL_MARKS
from inaproto.sim.control.marks import OF_A_DAY as WEATHER_MARKS
from inaproto.sim.control.world import ControlWorld
from inaproto.sim.frames.draw.swarm import WorldConfig
from inaproto.sim.kernel.config import WordsConfig
from inaproto.sim.models import shrink as models
from inaproto.sim.models.checkers import all_checkers as overlay_checkers
from inaproto.sim.models.config import OverlayConfig
from inaproto.sim.models.drawing import draw_overlay
from inaproto.sim.models.marks import DECLARED as OVERLAY_MARKS
from inaproto.sim.models.world import OverlayWorld
from inaproto.sim.trees import shrink as trees
from inaproto.sim.trees.checkers import all_checkers as trees_checkers
from inaproto.sim.trees.config import TreesConfig
from inaproto.sim.trees.drawing import draw_trees
from inaproto.sim.trees.marks import DECLARED as TREES_MARKS
from inaproto.sim.trees.world import TreesWorld


@dataclass(frozen=True, slots=True)
class WordKind:
    """A kind of worlds whose subject is what nodes say, not frames."""

    config: type[WordsConfig]
    world: Callable[..., ControlWorld | TreesWorld | OverlayWorld]
    draw: Callable[[Seed], WordsConfig]
    smaller: Callable[[Any], Iterator[WordsConfig]]
    """Configurations with one thing less, the greatest steps first."""
    size: Callable[[Any], str]
    rows: Callable[[Any], dict[str, str]]
    """A result in a few rows, for people."""
    checkers: Callable[[], Sequence[Any]]
    marks: Mapping[str, str]
    done: str
    """What ``operations_done`` counts."""


WORDS: Final = {
    WorldKind.CONTROL: WordKind(
        config=ControlConfig,
        world=ControlWorld,
        draw=draw_control,
        smaller=control.smaller_control,
        size=control.size_of_control,
        rows=control.control_rows,
        checkers=control_checkers,
        marks=CONTROL_MARKS,
        done="all-reduces",
    ),
    WorldKind.WEATHER: WordKind(
        config=WeatherConfig,
        world=ControlWorld,
        draw=draw_day,
        smaller=control.smaller_control,
        size=control.size_of_control,
        rows=control.control_rows,
        checkers=control_checkers,
        marks=WEATHER_MARKS,
        done="all-reduces",
    ),
    WorldKind.TREES: WordKind(
        config=TreesConfig,
        world=TreesWorld,
        draw=draw_trees,
        smaller=trees.smaller_trees,
        size=trees.size_of_trees,
        rows=trees.trees_rows,
        checkers=trees_checkers,
        marks=TREES_MARKS,
        done="rings",
    ),
    WorldKind.OVERLAY: WordKind(
        config=OverlayConfig,
        world=OverlayWorld,
        draw=draw_overlay,
        smaller=models.smaller_overlay,
        size=models.size_of,
        rows=models.overlay_rows,
        checkers=overlay_checkers,
        marks=OVERLAY_MARKS,
        done="pulls",
    ),
}


def any_kind_of(config: WorldConfig | WordsConfig) -> WorldKind:
    if isinstance(config, WorldConfig):
        return kind_of(config)
    return next(kind for kind, words in WORDS.items() if type(config) is words.config)


def draw_any(seed: Seed, kind: WorldKind) -> WorldConfig | WordsConfig:
    """The world of ``seed``, of any kind."""
    return WORDS[kind].draw(seed) if kind in WORDS else draw_kind(seed, kind)


def config_from(kind: str | None, record: Any) -> WorldConfig | WordsConfig:
    """The configuration in a log's header, which names worlds of words. Raises ``ConfigError``."""
    if kind is None:
        return WorldConfig.from_record(record)
    for known, words in WORDS.items():
        if kind == known:
            return words.config.from_record(record)
    raise ConfigError(f"event log: there is no world {kind!r} of words")
