"""What docs/cluster-files.md shows is read, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from inaproto_controller.cluster.graph_file import parse_json
from inaproto_controller.cluster.graph_network import GraphNetwork
from inaproto_controller.simulate.arrivals import parse_csv
from inaproto_controller.simulate.failures import Part, parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cluster-files.md").read_text()


def test_files_of_the_page_are_read() -> None:
    (cluster, failures) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (log,) = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)
    topology = parse_json(cluster.encode())
    assert [switch.aggregates for switch in topology.switches] == [True, True, False, True]
    events = parse(failures, {Part.SWITCH: len(topology.switches)})
    assert [event.up for event in events] == [False, True]
    assert parse_csv(log).arrivals == (0.0, 2.5)
    network = GraphNetwork(topology)
    assert [topology.switches[tree.root].name for tree in network.candidates([0, 2])] == ["spine"]
    assert network.candidates([4, 5]) == ()
