"""MINA, section III-C: independent sets, against those of the published solver and brute force."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto_controller.planning.trees.peeling import peel
from tests.controller.independent_set import (
    Graph,
    graph_of,
    largest,
    matrix_of,
    reducing_peeling,
)
from tests.controller.peeling_set_by_set import Peeling
from tests.data.mina.reference import reference


def drawn(draw: random.Random, vertices: int, edges: int) -> Graph:
    pairs = list(combinations(range(vertices), 2))
    return graph_of(vertices, draw.sample(pairs, min(edges, len(pairs))))


def check(graph: Graph, found: list[int]) -> None:
    """Independent, and nothing could be added."""
    chosen = set(found)
    assert sorted(chosen) == found
    for vertex, neighbours in enumerate(graph):
        assert (vertex in chosen) is not bool(neighbours & chosen)


def brute_force(graph: Graph) -> int:
    best = 0
    for mask in range(1 << len(graph)):
        chosen = {vertex for vertex in range(len(graph)) if mask >> vertex & 1}
        if len(chosen) > best and not any(graph[vertex] & chosen for vertex in chosen):
            best = len(chosen)
    return best


@pytest.mark.parametrize("case", reference("ref06_mis")["cases"], ids=lambda case: f"{case['n']} vertices")
def test_sets_are_about_as_large_as_the_published_solver_s(case: dict[str, Any]) -> None:
    graph = graph_of(case["n"], [(one, other) for one, other in case["edges"]])
    found = reducing_peeling(graph)
    check(graph, found)
    assert len(found) >= case["peer_size"] - 2
    if case["proved_optimal"]:
        best = largest(graph)
        check(graph, best)
        assert len(best) == case["best_known_size"]


def test_the_exact_solver_is_brute_force() -> None:
    draw = random.Random("largest")
    for _ in range(300):
        vertices = draw.randint(1, 11)
        graph = drawn(draw, vertices, draw.randint(0, 2 * vertices))
        best = largest(graph)
        check(graph, best)
        assert len(best) == brute_force(graph)


def test_the_heuristic_is_maximal_and_often_a_largest() -> None:
    draw, short = random.Random("peeling"), 0
    for _ in range(400):
        vertices = draw.randint(1, 40)
        graph = drawn(draw, vertices, draw.randint(0, 2 * vertices))
        found = reducing_peeling(graph)
        check(graph, found)
        short += len(largest(graph)) - len(found)
    assert 0 <= short <= 40


@pytest.mark.parametrize("length", range(3, 12))
def test_paths_and_cycles_are_decided_exactly(length: int) -> None:
    path = [(vertex, vertex + 1) for vertex in range(length - 1)]
    assert len(reducing_peeling(graph_of(length, path))) == (length + 1) // 2
    assert len(reducing_peeling(graph_of(length, [*path, (length - 1, 0)]))) == length // 2


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("linked", [False, True])
def test_paths_between_vertices_of_higher_degree_are_shortened_exactly(length: int, linked: bool) -> None:
    """Rule 2 in all its cases: two cliques of four, a path between a vertex of each, maybe an edge too."""
    edges = [*combinations(range(4), 2), *combinations(range(4, 8), 2)]
    inner = range(8, 8 + length)
    chain = [3, *inner, 4]
    edges += list(pairwise(chain))
    if linked:
        edges.append((3, 4))
    graph = graph_of(8 + length, edges)
    found = reducing_peeling(graph)
    check(graph, found)
    assert len(found) == len(largest(graph))


def subdivided(draw: random.Random, graph: Graph) -> Graph:
    """Edges become paths of up to five more vertices: what rule 2 is for."""
    vertices = len(graph)
    edges: list[tuple[int, int]] = []
    for one, neighbours in enumerate(graph):
        for other in sorted(neighbours):
            if other > one:
                path = list(range(vertices, vertices := vertices + draw.randint(0, 5)))
                edges += pairwise([one, *path, other])
    numbers = draw.sample(range(vertices), vertices)
    return graph_of(vertices, [(numbers[one], numbers[other]) for one, other in edges])


def test_sets_are_those_of_peeling_set_by_set_on_4000_graphs() -> None:
    draw = random.Random("set by set")
    for number in range(4000):
        graph = drawn(draw, draw.randint(1, 40), draw.randint(0, 90))
        if number % 2:
            graph = subdivided(draw, drawn(draw, draw.randint(2, 14), draw.randint(0, 30)))
        assert reducing_peeling(graph) == Peeling(graph).run()
        if number % 40 == 0:
            assert np.flatnonzero(peel(matrix_of(graph))).tolist() == reducing_peeling(graph)


def test_equal_graphs_have_equal_sets() -> None:
    graph = drawn(random.Random("equal"), 60, 150)
    assert reducing_peeling(graph) == reducing_peeling(list(graph))


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(LocalMisuse):
        graph_of(3, [(1, 1)])
    with pytest.raises(LocalMisuse):
        graph_of(3, [(1, 3)])
    with pytest.raises(LocalMisuse, match="branches"):
        largest(drawn(random.Random("many"), 60, 200), branches_max=1)
