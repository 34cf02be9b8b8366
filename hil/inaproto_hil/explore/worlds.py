"""The worlds that ``inaproto explore --world`` knows beside the ring.

A world more is an entry of ``WORLDS``: its variants, its settings, and a function that makes it of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from inaproto.errors import ConfigError
from inaproto.sim.explore import engine
from inaproto.sim.explore.migration import variants as migration_variants
from inaproto.sim.explore.migration.config import FAULTS, SCENARIOS
from inaproto.sim.explore.models.config import RANGES, TREES, OverlayWorldConfig
from inaproto.sim.explore.models.seats import Heeded
from inaproto.sim.explore.models.symmetry import NotAlike
from inaproto.sim.explore.models.world import OverlayExplored
from inaproto.sim.explore.successors.config import PATHS, SuccessorsConfig
from inaproto.sim.explore.successors.config import RANGES as SUCCESSORS_RANGES
from inaproto.sim.explore.successors.world import ASSUMED, SuccessorsExplored
from inaproto_hil.explore.report import VERSION, figures, memory_mib, print_run, told, watched
from inaproto_hil.rigs import environment


@dataclass(frozen=True, slots=True)
class Made:
    world: engine.Explorable[Any, Any]
    config: dict[str, Any]
    must_end: bool = False
    """No run without faults may go on for ever."""
    covered: Callable[[], Mapping[str, str]] = dict
    """What a search has seen, when it is over."""
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class NamedWorld:
    text: str
    settings: Mapping[str, str]
    """What settings mean, by form."""
    variants: Mapping[str, tuple[str, str]]
    """What each is, and what the search shows with its defaults."""
    make: Callable[[str, Mapping[str, str], bool], Made]
    """(variant, settings, reduced); raises ``ConfigError``."""
    product: tuple[str, ...] = ("product",)
    """The variants that are explored if none is named."""


def _sizes(settings: Mapping[str, str], texts: Sequence[str], numbers: Sequence[str]) -> dict[str, Any]:
    """The settings by name. Raises ``ConfigError`` for a name that is in neither, or no number."""
    sizes: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in (*texts, *numbers):
            raise ConfigError(f"--set {name}: there are {', '.join((*texts, *numbers))}")
        if name not in texts and not value.isdecimal():
            raise ConfigError(f"--set {name} must be a number, not {value!r}")
        sizes[name] = value if name in texts else int(value)
    return sizes


def _migration(variant: str, settings: Mapping[str, str], reduced: bool) -> Made:
    sizes = _sizes(settings, ("scenario",), ("capacity", "faults", *FAULTS))
    config = migration_variants.migration_config(variant, reduced=reduced, **sizes)
    return Made(migration_variants.migration_world(variant, config), asdict(config))


OVERLAYS: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "flat": ("three workers below one server, one crash anywhere", "holds", {}),
    "interior": (
        "two workers below a third, one crash of the server or of one of the two",
        "holds",
        {"tree": "interior", "struck": "ends"},
    ),
    "interior-node": (
        "two workers below a third, one crash anywhere; three dead nodes tear the tree down",
        "holds",
        {"tree": "interior", "failures": 3},
    ),
    "staleness": (
        "two workers below one server, staleness 1, one crash anywhere",
        "holds",
        {"tree": "two", "staleness": 1, "clocks": 2},
    ),
    "staleness-nodes": (
        "three workers below one server, staleness 1, one crash of a worker's host",
        "holds",
        {"tree": "flat", "staleness": 1, "clocks": 2, "struck": "nodes"},
    ),
    "staleness-three": (
        "three workers below one server, staleness 1, one crash anywhere",
        "holds",
        {"tree": "flat", "staleness": 1, "clocks": 2},
    ),
    "torn-down": (
        "two workers below a server that one dead node makes tear the tree down",
        "holds",
        {"tree": "two", "failures": 1, "clocks": 2},
    ),
    "abandoned": (
        "two workers below a third, one worker's process ends and another goes on in its place",
        "holds",
        {"tree": "interior", "crashes": 0, "abandons": 1, "clocks": 2},
    ),
    "pulls": (
        "three workers below one server, each goes on while one pull of it waits",
        "holds",
        {"crashes": 0, "clocks": 2, "pulls": 2},
    ),
}
"""What each is, what the search shows, and sizes, by name."""
EXPLORED: Final = ("flat", "interior", "staleness", "torn-down", "abandoned", "pulls")
"""What ``product`` stands for: all that is searched to the end within a minute."""


def _overlay(variant: str, settings: Mapping[str, str], reduced: bool) -> Made:
    if variant not in OVERLAYS:
        raise ConfigError(f"variant {variant!r} does not exist; there are {', '.join(OVERLAYS)}")
    sizes = OVERLAYS[variant][2] | _sizes(settings, ("tree", "struck"), tuple(RANGES))
    config = OverlayWorldConfig(**sizes, reduced=reduced)
    shown = {name: getattr(config, name) for name in ("tree", "struck", *RANGES)}
    return Made(OverlayExplored(config), shown, must_end=True)


SUCCESSORS: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "chain": ("a ring of the hosts alone, one daemon dies anywhere and another comes", "holds", {}),
    "switch": ("the same, summed in a switch", "holds", {"path": "auto"}),
    "beside": ("the first host has two ranks", "holds", {"beside": 1, "second": 0}),
    "gone": ("the daemon that dies has no successor", "holds", {"gone": 1}),
}
"""What each is, what the search shows, and sizes, by name."""


def _successors(variant: str, settings: Mapping[str, str], reduced: bool) -> Made:
    if variant not in SUCCESSORS:
        raise ConfigError(f"variant {variant!r} does not exist; there are {', '.join(SUCCESSORS)}")
    sizes = SUCCESSORS[variant][2] | _sizes(settings, ("path",), tuple(SUCCESSORS_RANGES))
    config = SuccessorsConfig(**sizes, reduced=reduced)
    world = SuccessorsExplored(config)
    shown = {name: getattr(config, name) for name in ("path", *SUCCESSORS_RANGES)}
    return Made(world, shown, must_end=True, covered=world.covered, assumed=ASSUMED)


WORLDS: Final[Mapping[str, NamedWorld]] = {
    "migration": NamedWorld(
        "two jobs change trees under faults (MINA IV-A)",
        {
            "scenario=NAME": ", ".join(SCENARIOS),
            "capacity=K": "slots of a switch",
            "faults=K": "in all, of any kind",
            "KIND=K": f"at most, of one kind: {', '.join(FAULTS)}; 1 of each, but no_return 0",
        },
        {its.name: (its.text, its.shows) for its in migration_variants.VARIANTS.values()},
        _migration,
    ),
    "overlay": NamedWorld(
        "a server and hosts train by push and pull (MLNet 3)",
        {
            "tree=NAME": ", ".join(TREES),
            "clocks=K": "updates of each worker",
            "staleness=K": "of the tree and of each pull",
            "pulls=K": "of a worker, that may wait at once",
            "crashes=K": "of any node or the server, at any moment",
            "struck=NAME": "any; ends: no node that has children; nodes: all but the server",
            "resets=K": "connections that break",
            "abandons=K": "processes of workers that end; others go on",
            "failures=K": "nodes dead at once that tear the tree down",
        },
        {name: (text, shows) for name, (text, shows, _) in OVERLAYS.items()},
        _overlay,
        EXPLORED,
    ),
    "successors": NamedWorld(
        "two hosts of a job whose daemons die and are replaced",
        {
            "path=NAME": ", ".join(PATHS),
            "first=K": "messages of the first all-reduce; 0: it is empty",
            "second=K": "of the second; 0: there is none",
            "window=K": "messages in flight",
            "ahead=1": "ranks call the second before the first has ended",
            "beside=1": "the first host has two ranks",
            "crashes=K": "host daemons that die, successors too, at any moment",
            "gone=K": "of these that have no successor",
            "expiries=K": "waits that end though something else could happen before",
        },
        {name: (text, shows) for name, (text, shows, _) in SUCCESSORS.items()},
        _successors,
        tuple(SUCCESSORS),
    ),
}


@dataclass(frozen=True, slots=True)
class NamedReport:
    world: str
    variant: str
    config: dict[str, Any]
    verdict: engine.Verdict
    seconds: float
    counterexample: engine.Counterexample | None
    is_shortest: bool
    covered: Mapping[str, str]
    assumed: str

    def as_json(self) -> dict[str, Any]:
        found = self.counterexample
        return {
            "version": VERSION,
            "world": self.world,
            "variant": self.variant,
            "config": self.config,
            "violations": 0 if found is None else 1,
            "counterexample": None if found is None else told(found, self.is_shortest),
            **figures(self.verdict, self.seconds),
            **({"covered": self.covered} if self.covered else {}),
            **({"assumptions": self.assumed} if self.assumed else {}),
            "memory_mib": memory_mib(),
            "environment": environment.describe(),
        }


def variants_of(world: str, variant: str) -> tuple[str, ...]:
    """The variants that are explored: ``product`` may stand for several."""
    if world not in WORLDS:
        raise ConfigError(f"--world {world!r} does not exist; there are ring, sharing, {', '.join(WORLDS)}")
    return WORLDS[world].product if variant == "product" else (variant,)


def search_named(
    world: str, variant: str, settings: Sequence[str], states_max: int, *, reduced: bool
) -> NamedReport:
    """Raises ``ConfigError``, and what ``engine.explore`` raises.

    A run that breaks a rule is looked for again without reductions, so that it is a shortest one. Where nodes
    that should be alike are not, or heed what none should, nothing is reduced.
    """
    values = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name in values:
            raise ConfigError(f"--set must be NAME=VALUE, each name once, not {setting!r}")
        values[name] = value
    made = WORLDS[world].make(variant, values, reduced)
    try:
        verdict, seconds = watched(made.world, states_max, variant, must_end=made.must_end)
    except (NotAlike, Heeded):
        return search_named(world, variant, settings, states_max, reduced=False)
    found, is_shortest = verdict.counterexample, not reduced
    if found is not None and reduced:
        try:
            full = WORLDS[world].make(variant, values, False)
            whole = watched(full.world, states_max, f"{variant} without reductions", must_end=made.must_end)[
                0
            ]
            found, is_shortest = whole.counterexample or found, whole.counterexample is not None
        except (engine.TooManyStates, engine.Interrupted):
            is_shortest = False
    covered = made.covered()
    return NamedReport(
        world, variant, made.config, verdict, seconds, found, is_shortest, covered, made.assumed
    )


def show_named(console: Console, report: NamedReport) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    verdict, (text, _) = report.verdict, WORLDS[report.world].variants[report.variant]
    for name, value in (
        ("world", f"{report.world}: {WORLDS[report.world].text}"),
        ("variant", f"{report.variant}: {text}"),
        *((name, _shown(value)) for name, value in report.config.items()),
        ("states", f"{verdict.states:,}"),
        ("transitions", f"{verdict.transitions:,}"),
        ("finished states", f"{verdict.finished:,}"),
        ("depth", f"{verdict.depth:,} steps"),
        *report.covered.items(),
        ("time", f"{report.seconds:.1f} s, {memory_mib():,} MiB"),
        ("violations", "0" if report.counterexample is None else "1"),
    ):
        table.add_row(name.replace("_", " "), value)
    console.print(table)
    if report.assumed and report.counterexample is None:
        console.print(f"assumed: {report.assumed}", highlight=False, soft_wrap=True)
    if report.counterexample is not None:
        print_run(console, report.counterexample, "A shortest run" if report.is_shortest else "A run")


def _shown(value: Any) -> str:
    return f"{value['name']}: {value['text']}" if isinstance(value, dict) else str(value)
