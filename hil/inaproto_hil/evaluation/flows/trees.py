"""Which flows a model's parameter servers and workers have, for each shape of tree (MLNet, section 4).

A shape is a tree over positions, made once by :mod:`inaproto.core.models.tree.trees`; each server has it with
other workers at the positions, or all have it alike (shared). Of a synchronisation, every worker sends one
flow of V/P for each of the P servers: to the server, or to the worker above it in the server's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from inaproto.core.models.tree.trees import OverlayTree, direct_tree, heap_tree, rack_tree
from inaproto.wire.messages.models import NodeId
from inaproto_hil.evaluation.flows.paths import Ints

SERVER: Final = -1


class Scheme(Enum):
    BASELINE = "BASELINE"
    RACK = "RACK"
    """One aggregator for each rack and server, drawn for each server."""
    RACK_SHARED = "RACK, shared"
    """The same aggregators for all servers."""
    BINARY = "BINARY"
    """A heap over a permutation of the workers, drawn for each server."""
    BINARY_SHARED = "BINARY, shared"
    BINARY_BY_RACK = "BINARY, rack by rack"
    """The permutation goes through one rack after the other."""
    RACK_TURNS = "RACK, in turns"
    """Ours: the workers of a rack take turns, so that each aggregates for as many servers as any other."""
    RACK_THEN_BINARY = "RACK then BINARY"
    """Ours: aggregators in turns, and above them a heap over the racks, which take turns too."""
    CHAIN = "chain by rack"
    """Ours: each worker sends to the next, rack by rack; the place at which it ends goes round."""


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """One of each worker for each server, server by server: to whom it sends what."""

    sources: Ints
    """(P W,): hosts."""
    sinks: Ints
    before: Ints
    after: Ints
    """Pairs of edges, where the sender of the second waits for the first if trees are not streamed."""
    height: int
    in_degree: int
    """In-degree of any worker or server in one tree, the most."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    tree: OverlayTree
    parents: Ints
    """(W,): position above each position, or ``SERVER``."""
    members: Ints
    """(P, W): which worker is at each position, for each server."""


def edges(scheme: Scheme, workers: Ints, servers: Ints, rack_size: int, draw: np.random.Generator) -> Edges:
    """``workers``: (W,) and ``servers``: (P,) the hosts that they are on, ``rack_size`` hosts to a rack."""
    order = np.argsort(workers, kind="stable")
    workers = workers[order]
    racks = _racks(workers // rack_size)
    shape = _SHAPES[scheme](racks, len(servers), draw)
    above = np.take(shape.members, shape.parents, axis=1)  # what SERVER takes is replaced
    sinks = np.where(shape.parents == SERVER, servers[:, None], workers[above])
    below = np.flatnonzero(shape.parents != SERVER)
    begin = np.arange(len(servers))[:, None] * len(workers)
    return Edges(
        workers[shape.members].reshape(-1),
        sinks.reshape(-1),
        (begin + below).reshape(-1),
        (begin + shape.parents[below]).reshape(-1),
        shape.tree.height(),
        shape.tree.in_degree_max,
    )


Racks = Sequence[Sequence[int]]
"""Positions of workers, ascending."""


def _racks(numbers: Ints) -> Racks:
    """``numbers``: of each worker's rack, ascending."""
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    return [part.tolist() for part in np.split(np.arange(len(numbers)), cuts)]


def _shaped(tree: OverlayTree, members: Ints) -> _Shape:
    parents = np.full(members.shape[1], SERVER, np.int64)
    for node, children in tree.below:
        if node != tree.root:
            parents[list(children)] = node
    return _Shape(tree, parents, members)


def _of(positions: Sequence[int]) -> list[NodeId]:
    return [NodeId(one) for one in positions]


def _count(racks: Racks) -> int:
    return sum(map(len, racks))


def _root(racks: Racks) -> NodeId:
    return NodeId(_count(racks))


def _baseline(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    tree = direct_tree(_root(racks), _of(range(_count(racks))))
    return _shaped(tree, np.tile(np.arange(_count(racks)), (servers, 1)))


def _rack_tree(racks: Racks) -> OverlayTree:
    return rack_tree(_root(racks), [_of(rack) for rack in racks], _of(range(_count(racks))))


def _rack(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    """The first of each rack aggregates: who that is, is drawn."""
    members = np.empty((servers, _count(racks)), np.int64)
    for rack in racks:
        members[:, rack] = draw.permuted(np.tile(rack, (servers, 1)), axis=1)
    return _shaped(_rack_tree(racks), members)


def _rack_shared(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    shape = _rack(racks, 1, draw)
    return _shaped(shape.tree, np.tile(shape.members, (servers, 1)))


def _in_turns(racks: Racks, servers: int) -> Ints:
    members = np.empty((servers, _count(racks)), np.int64)
    for rack in racks:
        turns = (np.arange(servers)[:, None] + np.arange(len(rack))) % len(rack)
        members[:, rack] = np.asarray(rack)[turns]
    return members


def _rack_turns(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    return _shaped(_rack_tree(racks), _in_turns(racks, servers))


def _binary(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    tree = heap_tree(_root(racks), _of(range(_count(racks))))
    return _shaped(tree, draw.permuted(np.tile(np.arange(_count(racks)), (servers, 1)), axis=1))


def _binary_shared(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    shape = _binary(racks, 1, draw)
    return _shaped(shape.tree, np.tile(shape.members, (servers, 1)))


def _binary_by_rack(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    tree = heap_tree(_root(racks), _of(range(_count(racks))))
    members = [
        np.concatenate([draw.permutation(racks[rack]) for rack in draw.permutation(len(racks))])
        for _ in range(servers)
    ]
    return _shaped(tree, np.array(members))


def _rack_then_binary(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    """Racks of one size are alike: their order goes round within each size."""
    above = heap_tree(_root(racks), [NodeId(rack[0]) for rack in racks])
    children = dict(above.below)
    for rack in racks:
        mates = tuple(_of(rack[1:]))
        children[NodeId(rack[0])] = mates + children.get(NodeId(rack[0]), ())
    members = _in_turns(racks, servers)
    for size in sorted({len(rack) for rack in racks}):
        alike = np.array([rack for rack in racks if len(rack) == size])
        steps = _spread(servers, len(alike))
        for server in range(servers):
            moved = np.roll(alike, steps[server], axis=0)
            members[server, alike] = members[server, moved]
    return _shaped(OverlayTree.of(_root(racks), children), members)


def _chain(racks: Racks, servers: int, draw: np.random.Generator) -> _Shape:
    tree = heap_tree(_root(racks), _of(range(_count(racks))), in_degree=1)
    steps = _spread(servers, _count(racks))
    return _shaped(tree, np.array([np.roll(np.arange(_count(racks)), step) for step in steps]))


def _spread(servers: int, places: int) -> Ints:
    """How far each server's round is turned, so that all places are taken as often."""
    return (
        np.arange(servers) * places // max(servers, 1) if servers <= places else np.arange(servers) % places
    )


_SHAPES: Final[dict[Scheme, Callable[[Racks, int, np.random.Generator], _Shape]]] = {
    Scheme.BASELINE: _baseline,
    Scheme.RACK: _rack,
    Scheme.RACK_SHARED: _rack_shared,
    Scheme.BINARY: _binary,
    Scheme.BINARY_SHARED: _binary_shared,
    Scheme.BINARY_BY_RACK: _binary_by_rack,
    Scheme.RACK_TURNS: _rack_turns,
    Scheme.RACK_THEN_BINARY: _rack_then_binary,
    Scheme.CHAIN: _chain,
}
