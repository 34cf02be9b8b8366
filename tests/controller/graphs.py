"""Clusters of odd shapes, and trees in them judged link by link."""

from __future__ import annotations

import random

import networkx as nx

from inaproto_controller.cluster.graph_network import GraphTree
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology

HDR = {"jobs": 1}
NDR = {"jobs_per_port": 1}


def limited(name: str, limits: dict[str, int]) -> GraphSwitch:
    return GraphSwitch(name, limits.get("jobs"), limits.get("jobs_per_port"))


def cluster(
    hosts: dict[str, str], switches: dict[str, dict[str, int]], *links: tuple[str, str] | tuple[str, str, int]
) -> GraphTopology:
    """``hosts``: the switch of each; ``links``: between switches, with their jobs where limited."""
    number = {name: node for node, name in enumerate([*hosts, *switches])}
    made = [GraphLink(number[host], number[switch]) for host, switch in hosts.items()]
    made += [GraphLink(number[link[0]], number[link[1]], *link[2:]) for link in links]
    return GraphTopology(
        tuple(hosts), tuple(limited(name, limits) for name, limits in switches.items()), tuple(made)
    )


def drawn(draw: random.Random) -> GraphTopology:
    """Connected, all generations of switches, hosts with one or two links, parallel links."""
    limits: list[dict[str, int]] = [{}, HDR, NDR, {"jobs": 2}, {"jobs": 3, "jobs_per_port": 2}, {"jobs": 0}]
    count, hosts = draw.randint(1, 9), draw.randint(2, 14)
    switches = tuple(limited(f"s{number}", draw.choice(limits)) for number in range(count))
    links = [GraphLink(host, hosts + draw.randrange(count)) for host in range(hosts)]
    links += [GraphLink(hosts + draw.randrange(count), draw.randrange(hosts)) for _ in range(hosts // 4)]
    links += [GraphLink(hosts + draw.randrange(one), hosts + one) for one in range(1, count)]
    for _ in range(draw.randint(0, 2 * count)):
        one, other = draw.randrange(count), draw.randrange(count)
        if one != other:
            links.append(GraphLink(hosts + one, hosts + other, draw.choice([None, None, 1, 2, 0])))
    return GraphTopology(tuple(f"h{number}" for number in range(hosts)), switches, tuple(links))


def graph_of(topology: GraphTopology) -> nx.MultiGraph:
    """What trees may use, by number of the link."""
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(topology.nodes))
    for number, link in enumerate(topology.links):
        if link.jobs != 0:
            graph.add_edge(link.one, link.other, key=number)
    return graph


def faults(topology: GraphTopology, tree: GraphTree, hosts: list[int]) -> list[str]:
    """What keeps a tree from summing for these hosts along shortest ways."""
    whole, found = graph_of(topology), []
    chosen = [(topology.links[link].one, topology.links[link].other, link) for link in tree.links]
    graph = whole.edge_subgraph(chosen)
    top = topology.hosts + tree.root
    members = {top, *hosts}
    if not nx.is_tree(nx.Graph(graph)) or len(graph.edges) != len(graph) - 1 or not members <= set(graph):
        return ["no tree of the hosts"]
    transit = whole.subgraph([*hosts, *range(topology.hosts, topology.nodes)]).copy()
    for host in hosts:
        others = transit.subgraph([node for node in transit if node >= topology.hosts or node == host])
        way = nx.shortest_path_length(nx.Graph(graph), host, top)
        if way != nx.shortest_path_length(nx.Graph(others), host, top):
            found.append(f"host {host} goes a longer way")
    for node in graph:
        if node < topology.hosts:
            if node not in hosts or graph.degree(node) != 1:
                found.append(f"host {node} passes packets on")
            continue
        inputs = graph.degree(node) - (node != top)
        if inputs > 1 and not topology.switches[node - topology.hosts].aggregates:
            found.append(f"inputs join at {topology.name(node)}")
        if inputs < 1 or (node == top and inputs < 2):
            found.append(f"{topology.name(node)} has {inputs} inputs")
    if sorted(node - topology.hosts for node in graph if node >= topology.hosts) != list(tree.switches):
        found.append("other switches than it says")
    return found
