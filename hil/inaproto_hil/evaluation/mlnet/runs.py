"""The runs behind MLNet's figures: phases of a synchronisation, and models that train together.

The unit of time is V/B: V bytes of gradients for each worker and synchronisation, B the speed of a link.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from inaproto_hil.evaluation.flows.fat_tree_links import FatTreeLinks, drawn_choices
from inaproto_hil.evaluation.flows.paths import Floats, Ints, Paths
from inaproto_hil.evaluation.flows.phase import Load, carry
from inaproto_hil.evaluation.flows.rounds import Training, floors, train
from inaproto_hil.evaluation.flows.trees import Edges, Scheme, edges

PORTS: Final = 16
WORKERS: Final = 800
STORED_SLACK: Final = 0.002
"""Slack of phases whose trees wait for their children; all others are exact."""
CARRIED_MOST: Final = 400
"""Beyond so many servers a phase is what its fullest link needs, which is proved: no flow is followed."""
QUANTILES: Final = 101

REPLICA_PORTS: Final = 8
REPLICA_WORKERS: Final = 25
REPLICA_SERVERS: Final = 6
MODELS: Final = 20
ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """800 workers on 1,024 servers push; to pull takes as long, being the mirror image of it."""

    scheme: Scheme
    servers: int
    oversubscription: float
    seed: int
    is_stored: bool = False
    """Trees wait for their children: store and forward."""


class PhaseFound(NamedTuple):
    time: float
    fullest: float
    """What the fullest link has to carry, over its capacity: no phase is shorter."""
    heaviest: float
    total: float
    """Traffic of the link that has the most, and of all links, in V."""
    quantiles: tuple[float, ...]
    """Quantiles of the traffic of links, in V."""
    rated: int
    """How often rates were found; 0 where no flow was followed."""
    seconds: float
    """Seconds of processor time, for the phase."""
    height: int
    in_degree: int


@dataclass(frozen=True, slots=True)
class TogetherRun:
    """20 models on the replica with 128 servers, of the same density as 20 models of 200 workers on 1,024."""

    compute: float
    """Computing time of a round."""
    scheme: Scheme
    is_prioritised: bool
    seed: int


class TogetherFound(NamedTuple):
    makespans: tuple[float, ...]
    """Makespans by model."""
    floors: tuple[float, ...]
    """Ascending: no schedule lets the first model end sooner than the first of these, and so on."""


Run = PhaseRun | TogetherRun
Found = PhaseFound | TogetherFound


def perform(run: Run) -> tuple[Run, Found]:
    """The run, too: outcomes come in the order in which they are done."""
    match run:
        case PhaseRun():
            return run, _phase(run)
        case TogetherRun():
            return run, _together(run)


def warm_up() -> None:
    """Compiled code is made, or loaded, in this process: once for all that share its cache."""
    _together(TogetherRun(2.0, Scheme.BINARY, True, 0))


def _stream(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng((seed, *purpose))


def _placed(
    network: FatTreeLinks, workers: int, servers: int, draw: np.random.Generator
) -> tuple[Ints, Ints]:
    """Uniformly without replacement, but independently of each other: they may share hosts."""
    hosts = network.servers
    return draw.choice(hosts, workers, replace=False), draw.choice(hosts, servers, replace=False)


def _routed(network: FatTreeLinks, found: Edges, draw: np.random.Generator) -> Paths:
    return network.paths(found.sources, found.sinks, drawn_choices(network, len(found.sources), draw))


def _phase(run: PhaseRun) -> PhaseFound:
    begun = time.process_time()
    network = FatTreeLinks(PORTS, run.oversubscription)
    workers, servers = _placed(network, WORKERS, run.servers, _stream(run.seed, 0, run.servers))
    tree = edges(run.scheme, workers, servers, network.half, _stream(run.seed, 1))
    paths = _routed(network, tree, _stream(run.seed, 2))
    volumes = np.full(len(paths), 1 / run.servers)
    load = Load.of(paths, volumes)
    if run.is_stored:
        load = Load.of(paths, volumes, before=tree.before, after=tree.after)
    capacities = network.capacities()
    traffic = load.on_links(network.links)
    fullest = float((traffic / capacities).max())
    took, rated = fullest, 0
    if run.is_stored or run.servers <= CARRIED_MOST:
        course = carry(capacities, load, slack=STORED_SLACK if run.is_stored else 0.0)
        took, rated = course.time, course.rated
    seconds = time.process_time() - begun
    quantiles: Floats = np.quantile(traffic, np.linspace(0, 1, QUANTILES))
    return PhaseFound(
        took,
        fullest,
        float(traffic.max()),
        float(traffic.sum()),
        tuple(quantiles.tolist()),
        rated,
        seconds,
        tree.height,
        tree.in_degree,
    )


def _together(run: TogetherRun) -> TogetherFound:
    network = FatTreeLinks(REPLICA_PORTS)
    priorities = _stream(run.seed, 3).permutation(MODELS).tolist()
    models = [
        _training(run, network, model, priorities[model] if run.is_prioritised else 0)
        for model in range(MODELS)
    ]
    capacities = network.capacities()
    return TogetherFound(tuple(train(capacities, models)), tuple(floors(capacities, models).tolist()))


def _training(run: TogetherRun, network: FatTreeLinks, model: int, priority: int) -> Training:
    draw = _stream(run.seed, 4, model)
    workers, servers = _placed(network, REPLICA_WORKERS, REPLICA_SERVERS, draw)
    tree = edges(run.scheme, workers, servers, network.half, draw)
    push = _routed(network, tree, draw)
    phases = [push, network.mirrored(push)]
    return Training(phases, 1 / REPLICA_SERVERS, run.compute, ROUNDS, priority)
