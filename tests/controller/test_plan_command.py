"""``inaproto plan paring`` as people call it."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inaproto_controller.plan_command.command import plan

UNEVEN = Path(__file__).resolve().parents[2] / "examples" / "uneven.json"
FAT = ("--topology", "fat-tree:6", "--programmable", "e0.* e1.* a0.0 a1.0", "--workers", "20", "--rate", "5")
SVG = "{http://www.w3.org/2000/svg}"


def called(*arguments: str) -> Result:
    return CliRunner().invoke(plan, ["paring", *arguments])


def reported(*arguments: str) -> dict[str, Any]:
    result = called(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_plan_is_told_as_a_tree() -> None:
    result = called(*FAT, "--mode", "printed", "--beta", "1")
    assert result.exit_code == 0, result.output
    first, _, rate, links, *tree = result.stdout.splitlines()
    said = "20 workers send at 2.5 Gbit/s: an iteration's 100 MB take 0.32 s, and the links carry 4.3 GB"
    assert first == said
    assert rate == "rate     2.5 Gbit/s; highest of any tree 2.5"
    assert links.startswith("links    43; at least ")
    assert tree[0].startswith("parameter server h")
    assert sum(line.count(" h") for line in tree) == 21


def test_fees_are_told_with_links_and_what_is_least_of_both() -> None:
    asked = ("--topology", "fat-tree:4", "--programmable", "e0.* a0.*", "--workers", "7", "--rate", "3")
    fees = ("--fee", "*=2", "--mode", "exact")
    lines = called(*asked, *fees).stdout.splitlines()
    assert lines[2].startswith("rate     3 Gbit/s")
    assert lines[3].startswith("links    ")
    assert lines[4].endswith("; with links 26, least possible")
    (part,) = reported(*asked, *fees)["parts"]
    assert (part["hops_and_fees_at_least"]["exact"], part["is_proved"]) == ("26", True)
    assert part["hops"] + part["fees"]["value"] == 26


def test_one_worker_and_a_server_of_a_fat_tree_are_called_as_people_do() -> None:
    single = called("--topology", "fat-tree:4", "--workers", "1", "--mode", "printed")
    assert single.stdout.startswith("1 worker sends at 10 Gbit/s: ")
    unable = called("--topology", "fat-tree:4", "--workers", "3", "--server-capacity", "0", "--ps", "h9")
    assert "the PS cannot add gradients up (server: h9, capacity: 0)" in unable.output


def test_all_of_it_as_json_on_a_file_of_ones_own() -> None:
    found = reported(
        "--topology", str(UNEVEN), "--workers", "10", "--server-capacity", "4", "--mode", "exact"
    )
    (part,) = found["parts"]
    assert (found["rate_gbit_s"], found["seconds"]["exact"]) == ({"exact": "2", "value": 2.0}, "2/5")
    assert (part["hops"], part["hops_at_least"], part["is_proved"]) == (21, 21, True)
    assert found["traffic_bytes"] == 21 * 100_000_000
    assert sum(len(path) - 1 for path in part["routes"].values()) == 21
    assert set(part["parents"]) == {*found["workers"], *part["switches"]}
    assert part["capacity_taken_gbit_s"]["leaf-a"]["exact"] == "6"
    assert sorted(_ranks(part["reduction_plan"])) == list(range(10))
    assert found["asked"]["mode"] == "exact"


def _ranks(lists: list[Any]) -> list[int]:
    return [rank for one in lists for rank in ([one] if isinstance(one, int) else _ranks(one))]


def test_the_tree_is_drawn_on_the_topology(tmp_path: Path) -> None:
    file = tmp_path / "tree.svg"
    assert called(*FAT, "--svg", str(file)).exit_code == 0
    root = ET.parse(file).getroot()
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert sum(": worker, sends to" in title for title in titles) == 20
    assert sum(": parameter server" in title for title in titles) == 1
    assert "prefers-color-scheme: dark" in file.read_text()
    other = tmp_path / "again.svg"
    assert called(*FAT, "--svg", str(other)).exit_code == 0
    assert other.read_bytes() == file.read_bytes()


def test_of_a_large_network_what_the_tree_uses_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "tree.svg"
    large = (
        "--topology",
        "fat-tree:10",
        "--programmable",
        "e0.* a0.0",
        "--workers",
        "8",
        "--mode",
        "printed",
    )
    assert called(*large, "--svg", str(file)).exit_code == 0
    assert "nodes that it does not use are left out" in file.read_text()


def test_memory_and_several_servers_make_parts_and_subtasks() -> None:
    found = reported(
        *("--topology", "fat-tree:4", "--workers", "7", "--capacity", "unbounded", "--memory", "*=10MB"),
        *("--servers", "2", "--gradient", "101MB", "--mode", "printed"),
    )
    assert [part["gradient_bytes"] for part in found["parts"]] == [50_500_000, 50_500_000]
    cut = {"count": 6, "each_bytes": 10_000_000, "whole": 5, "rest_bytes": 500_000}
    assert found["parts"][0]["subtasks"] == cut


def test_coarse_routing_leads_nothing_past_a_switch_that_adds_up() -> None:
    large = (*FAT[:4], "--workers", "35", "--rate", "5", "--mode", "printed", "--beta", "1")

    def told(*more: str) -> tuple[bool, str, int, int]:
        """Whether it is coarse, its rate and links, and how many gradients pass such a switch."""
        (part,) = reported(*large, *more)["parts"]
        ways = [way for way in part["routes"].values() if not {*way[1:-1]}.isdisjoint(part["switches"])]
        return part["is_coarse"], part["rate_gbit_s"]["exact"], part["hops"], len(ways)

    assert told() == (False, "2", 114, 2)
    assert told("--coarse") == (True, "5/3", 110, 0)
    assert "routing  coarse" in called(*large, "--coarse").stdout


def test_servers_that_are_busy_or_wanted() -> None:
    found = reported(*FAT, "--busy", "h0 h1", "--ps", "h40", "--mode", "printed")
    assert found["parts"][0]["parameter_server"] == "h40"
    assert not {"h0", "h1"} & set(found["workers"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topology", "fat-tree:4", "--workers", "17"), "too few servers"),
        (
            ("--topology", "fat-tree:4", "--workers", "7", "--fee", "*=2", "--budget", "4"),
            "highest rate within the budget: 10/3",
        ),
        (("--topology", "fat-tree:4", "--workers", "7", "--server-capacity", "0"), "can add gradients up"),
    ],
)
def test_what_cannot_be_is_said_with_its_witness(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    result = called(*arguments, "--json", str(tmp_path / "answer.json"))
    assert result.exit_code == 1
    assert words in result.output
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["infeasible"]["witness"]


def test_a_network_that_is_apart(tmp_path: Path) -> None:
    file = tmp_path / "apart.json"
    links = [{"between": [host, switch]} for host, switch in (("a", "s"), ("b", "s"), ("c", "t"))]
    switches = [{"name": "s", "capacity": "5/2"}, {"name": "t"}]
    file.write_text(json.dumps({"hosts": ["a", "b", "c"], "switches": switches, "links": links}))
    result = called("--topology", str(file), "--workers", "2")
    assert result.exit_code == 1
    assert "needed: 3, idle: 3, of one plane: 2" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topology", "fat-tree:5"), "an even number of ports"),
        (("--topology", "none.json"), "No such file"),
        (("--topology", "fat-tree:4", "--programmable", "x1"), "switch x1"),
        (("--topology", "fat-tree:4", "--busy", "h16"), "server h16: there is none"),
        (("--topology", "fat-tree:4", "--ps", "h1", "--busy", "h1"), "it is --busy"),
        (("--topology", "fat-tree:4", "--rate", "0"), "a number above 0"),
        (("--topology", "fat-tree:4", "--rate", "1e999999999"), "a number above 0"),
        (("--topology", "fat-tree:4", "--rate", "1e-400"), "of 0.000001 to 1000000000"),
        (("--topology", "fat-tree:4", "--rate", "1/0"), "a number above 0"),
        (("--topology", "fat-tree:4", "--capacity", "1e99999999"), "Gbit/s, 0 or more"),
        (("--topology", "fat-tree:4", "--capacity", "1/10000000"), "of 0.000001 to 1000000000"),
        (("--topology", "fat-tree:4", "--fee", "*=1e99999999"), "a number above 0"),
        (("--topology", "fat-tree:4", "--gradient", "many"), "bytes, such as"),
        (("--topology", "fat-tree:4", "--gradient", "1B", "--servers", "2"), "at least a byte"),
        (("--topology", "fat-tree:4", "--capacity", "-1"), "Gbit/s, 0 or more"),
        (("--topology", "fat-tree:4", "--fee", "2"), "switches, =, and what each has"),
        (("--topology", "fat-tree:4", "--fee", "c9=2"), "9 is not below 4"),
        (("--topology", "fat-tree:4", "--fee", "c1=2", "--coarse"), "planned without fees"),
        (("--topology", "fat-tree:4", "--budget", "2"), "--budget limits fees"),
        (("--topology", "fat-tree:4", "--beta", "1/2"), "--beta: 1 or more"),
        (("--topology", "fat-tree:4", "--worker-capacity", "2"), "only --mode printed"),
        (("--topology", str(UNEVEN), "--programmable", "e0.0"), "is for fat trees"),
        (("--topology", str(UNEVEN), "--fee", "leaf-x=1"), "switch leaf-x: there is none"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_options_that_are_wrong_say_what_to_write(arguments: tuple[str, ...], words: str) -> None:
    given = [part.replace(str(UNEVEN.parent), "EXAMPLES") for part in arguments]
    result = called(*arguments, "--workers", "3")
    assert result.exit_code == 2, (given, result.output)
    assert words in result.output


@pytest.mark.parametrize(
    ("written", "said"),
    [('"much"', "much"), ('"1e99999999"', "1e99999999"), ("1e99", "1" + 39 * "0"), ("NaN", "nan")],
)
def test_a_capacity_in_a_file_that_is_none(written: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    text = UNEVEN.read_text().replace('"10/3"', written)
    file.write_text(text)
    result = called("--topology", str(file), "--workers", "3")
    assert result.exit_code == 2
    assert f"node leaf-c: capacity '{said}'" in result.output


def test_the_least_and_the_most_that_numbers_may_be_are_planned(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(UNEVEN.read_text().replace('"10/3"', "1e-6"))
    for rate in ("0.000001", "1000000000"):
        found = reported("--topology", str(file), "--workers", "3", "--rate", rate, "--gradient", "1TB")
        assert 0 < found["rate_gbit_s"]["value"] <= 10**9
        assert found["seconds"]["value"] > 0


def test_node_link_json_and_graphml_may_give_servers_a_capacity(tmp_path: Path) -> None:
    import networkx as nx

    graph = nx.Graph()
    graph.add_node("s", kind="switch", capacity="unbounded")
    for host in "abc":
        graph.add_node(host, kind="host", capacity=2.5 if host == "b" else 0.0)
        graph.add_edge(host, "s")
    nx.write_graphml(graph, tmp_path / "net.graphml")
    (tmp_path / "net.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    for name in ("net.graphml", "net.json"):
        found = reported("--topology", str(tmp_path / name), "--workers", "2", "--rate", "9")
        assert found["parts"][0]["parameter_server"] == "b"
        assert found["rate_gbit_s"]["exact"] == "5/2"


def test_ctrl_c_ends_exact_mode_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python hears of it only when HiGHS comes back, which takes as long as --seconds says."""
    from scipy import optimize

    heard, solve = [], optimize.milp

    def milp(*arguments: Any, **options: Any) -> Any:
        heard.append(signal.getsignal(signal.SIGINT))
        return solve(*arguments, **options)

    monkeypatch.setattr(optimize, "milp", milp)
    before = signal.getsignal(signal.SIGINT)
    ignoring = signal.SIG_IGN  # as under nohup
    try:
        for handler in (signal.default_int_handler, ignoring):
            signal.signal(signal.SIGINT, handler)
            assert called(*FAT, "--mode", "exact").exit_code == 0
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(heard) == {signal.SIG_DFL, ignoring}


def test_a_drawing_that_a_full_disk_does_not_take_loses_no_plan() -> None:
    result = called(*FAT, "--svg", "/dev/full", "--json", "-")
    assert result.exit_code == 1
    assert "Error: /dev/full cannot be written: No space left on device" in result.stderr
    assert json.loads(result.stdout)["parts"]
    assert "20 workers send at" in result.stderr


def test_a_capacity_that_a_file_says_is_not_said_again() -> None:
    """It was taken and did nothing."""
    refused = called("--topology", str(UNEVEN), "--workers", "10", "--capacity", "100")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--capacity is for fat trees: in a file, each switch that adds up has a capacity" in refused.stderr
    assert reported("--topology", "fat-tree:4", "--workers", "3")["asked"]["capacity"] == "10"
    assert "capacity" not in reported("--topology", str(UNEVEN), "--workers", "3")["asked"]


def test_names_may_have_blanks_in_them(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    hosts = ["host 0", "host 1", "host 2", "h3", "h4"]
    switches = [{"name": "switch 0", "capacity": 4}]
    links = [{"between": [host, "switch 0"]} for host in hosts]
    file.write_text(json.dumps({"hosts": hosts, "switches": switches, "links": links}))
    asked = ("--topology", str(file), "--workers", "1", "--server-capacity", "1")
    found = reported(*asked, "--busy", "host 0", "--busy", "h3 h4", "--fee", "switch 0=3")
    assert {found["parts"][0]["parameter_server"], *found["workers"]} == {"host 1", "host 2"}
    assert found["asked"]["busy"] == ["host 0", "h3 h4"]
