"""Files of clusters: what is read, and how a bad one is answered."""

from __future__ import annotations

import json
import random
from io import BytesIO
from pathlib import Path

import networkx as nx
import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.graph_file import document, of_networkx, parse_graphml, parse_json, read
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from tests.controller.graphs import drawn

CLUSTER = """{
 "hosts": ["a", "b", "c"],
 "switches": [{"name": "leaf", "jobs": 1}, {"name": "spine", "jobs_per_port": 2}, {"name": "old"}],
 "links": [{"between": ["a", "leaf"]}, {"between": ["b", "leaf"]}, {"between": ["old", "c"]},
           {"between": ["leaf", "spine"], "jobs": 1}, {"between": ["spine", "old"]}]
}"""

GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="k" for="node" attr.name="kind" attr.type="string"><default>switch</default></key>
  <key id="j" for="all" attr.name="jobs" attr.type="int"/>
  <key id="p" for="node" attr.name="jobs_per_port" attr.type="int"/>
  <key id="x" for="node" attr.name="x" attr.type="double"/>
  <graph edgedefault="directed">
    <node id="a"><data key="k">host</data><data key="x">1.5</data></node>
    <node id="b"><data key="k">host</data></node>
    <node id="c"><data key="k">host</data></node>
    <node id="leaf"><data key="j">1</data></node>
    <node id="spine"><data key="p">2</data></node>
    <node id="old"/>
    <edge source="a" target="leaf"/> <edge source="leaf" target="a"/>
    <edge source="b" target="leaf"/>
    <edge source="c" target="old"/>
    <edge source="leaf" target="spine"><data key="j">1</data></edge>
    <edge source="old" target="spine"/>
  </graph>
</graphml>"""


def links(topology: GraphTopology) -> list[tuple[list[str], int | None]]:
    """In no order, of either direction."""
    named = (([topology.name(one.one), topology.name(one.other)], one.jobs) for one in topology.links)
    return sorted(((sorted(ends), jobs) for ends, jobs in named), key=str)


def graph_of(topology: GraphTopology, graph: nx.Graph) -> nx.Graph:
    for name in topology.host_names:
        graph.add_node(name, kind="host")
    for one in topology.switches:
        limits = {"jobs": one.jobs, "jobs_per_port": one.jobs_per_port}
        graph.add_node(
            one.name, kind="switch", **{field: limit for field, limit in limits.items() if limit is not None}
        )
    for link in topology.links:
        limit = {} if link.jobs is None else {"jobs": link.jobs}
        graph.add_edge(topology.name(link.one), topology.name(link.other), **limit)
    return graph


def test_our_own_form() -> None:
    topology = parse_json(CLUSTER.encode())
    assert topology == GraphTopology(
        ("a", "b", "c"),
        (GraphSwitch("leaf", 1), GraphSwitch("spine", None, 2), GraphSwitch("old")),
        (GraphLink(0, 3), GraphLink(1, 3), GraphLink(5, 2), GraphLink(3, 4, 1), GraphLink(4, 5)),
    )
    assert [switch.aggregates for switch in topology.switches] == [True, True, False]
    assert [topology.link_jobs(link) for link in topology.links] == [None, None, None, 1, 2]


def test_graphml_with_defaults_directions_and_attributes_of_others() -> None:
    topology, own = parse_graphml(GRAPHML.encode()), parse_json(CLUSTER.encode())
    assert (topology.host_names, topology.switches) == (own.host_names, own.switches)
    assert links(topology) == links(own)


def test_forms_agree_about_random_clusters(tmp_path: Path) -> None:
    draw = random.Random("graph files")
    for _ in range(60):
        topology = drawn(draw)
        assert parse_json(json.dumps(document(topology)).encode()) == topology
        graph = graph_of(topology, nx.MultiGraph())
        written = BytesIO()
        nx.write_graphml(graph, written)
        (tmp_path / "cluster.graphml").write_bytes(written.getvalue())
        (tmp_path / "links.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
        (tmp_path / "edges.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
        for other in (of_networkx(graph), *(read(path) for path in sorted(tmp_path.iterdir()))):
            assert (other.host_names, other.switches) == (topology.host_names, topology.switches)
            assert links(other) == links(topology)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"jobs": 1}, {"name": "s',
            '"jobs": -1}, {"name": "s',
            r"switches\[0\] \(leaf\) jobs.*greater than or equal to 0",
        ),
        (
            '"jobs": 1}, {"name": "s',
            '"jobs": 1.5}, {"name": "s',
            r"switches\[0\] \(leaf\) jobs.*valid integer",
        ),
        (
            '"jobs_per_port"',
            '"jobs_per_prt"',
            r"switches\[1\] \(spine\) jobs_per_prt: no such key; keys are name, jobs, jobs_per_port, ",
        ),
        (
            '["a", "leaf"]',
            '["a", "leaf"], "gbit_s": 40',
            r"links\[0\] \(a - leaf\) gbit_s: no such key; keys are between, jobs$",
        ),
        ('"hosts"', '"gbit_s": 40, "hosts"', "gbit_s: no such key; keys are hosts, switches, links$"),
        ('{"name": "old"}', '{"jobs": 1}', r"switches\[2\] name: Field required"),
        ('"hosts"', '"host"', "hosts: Field required"),
        ('["a", "b", "c"]', '["a", "", "c"]', r"hosts\[1\]: String should have at least"),
        ('["b", "leaf"]', '["b"]', r"links\[1\] \(b\) between: List should have at least 2"),
        ('["b", "leaf"]', '["b", "lea"]', "link b - lea: no node lea"),
        ('["b", "leaf"]', '["b", "a"]', "link b - a: both are hosts"),
        ('["spine", "old"]', '["spine", "leaf"]', "host c: no path leads to it from host a"),
        ('["a", "b", "c"]', '["a", "b", "c"', r"line 3: Expecting"),
        (CLUSTER, "[]", "cluster: Input should be"),
        (CLUSTER, "[" * 100000, "brackets"),
        (CLUSTER, '{"nodes": [{"kind": "host"}], "links": []}', r"nodes\[0\]: needs an id"),
        (CLUSTER, '{"nodes": [{"id": "a"}], "links": []}', "node a: needs kind"),
        (CLUSTER, '{"nodes": [], "links": 5}', "no node-link graph"),
        (CLUSTER, '{"nodes": [], "links": [], "graph": [1]}', "graph: an object"),
        (
            CLUSTER,
            '{"nodes": [], "links": [], "graph": {"node_default": 1}}',
            "node_default, edge_default: an object",
        ),
        ('"jobs": 1', '"jobs": ' + "9" * 5000, "digits"),
    ],
)
def test_a_bad_file_is_named_with_its_node_or_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CLUSTER
    path = tmp_path / "cluster.json"
    path.write_text(CLUSTER.replace(old, new))
    with pytest.raises(ConfigError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('<data key="j">1</data></node>', '<data key="j">-1</data></node>', "node leaf: jobs -1"),
        ('<data key="j">1</data></node>', '<data key="j">one</data></node>', "no GraphML.*one"),
        ('<data key="p">2</data>', '<data key="k">router</data>', "node spine: kind 'router'"),
        ('attr.name="jobs_per_port"', 'attr.name="jobs_a_port"', "node spine: no attribute jobs_a_port"),
        ("<default>switch</default>", "", "node leaf: needs kind"),
        ('<edge source="b" target="leaf"/>', '<edge source="b" target="lea"/>', "a link of b: no node lea"),
        ('<edge source="b" target="leaf"/>', "", "host b: no link"),
        ("UTF-8", "UTF-7.5", "no GraphML.*UTF-7.5"),
        ("</graph>", "</grap>", "line 19: no XML"),
        ("</graphml>", "", "line 20: no XML"),
        ('<graph edgedefault="directed">', "<other>", "line 19: no XML"),
    ],
)
def test_bad_graphml_is_named_with_its_node_or_line(old: str, new: str, message: str) -> None:
    assert old in GRAPHML
    with pytest.raises(ConfigError, match=message):
        parse_graphml(GRAPHML.replace(old, new, 1).encode())


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "latin.json").write_bytes(b'{"hosts": ["\xff"]}')
    for name, message in {
        "none.json": "No such file",
        "cluster.toml": "ending of its name, .json or .graphml or .xml",
        "latin.json": "no UTF-8",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read(tmp_path / name)
