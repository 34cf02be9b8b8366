"""``inaproto bench peers``: what it is told, what it makes of turns, and that no wrong element passes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from inaproto_adapters.frames.xdp import chunk_for
from inaproto_hil.bench.peers.command import peers_bench
from inaproto_hil.bench.peers.config import (
    Config,
    parse_delay,
    parse_link,
    parse_rate,
    parse_settings,
    parse_share,
)
from inaproto_hil.bench.peers.figures import Entry, TurnResult, document, entry_of
from inaproto_hil.bench.peers.picture import drawing
from inaproto_hil.bench.peers.table import show, size_said
from inaproto_hil.bench.peers.tools import Tools, default_environment
from inaproto_hil.ranks.stepping import LEAD_IN_MAX, SHIFTS, Data, Floats, Turn, TurnPlan
from inaproto_hil.rigs.links import Shape, losing

LINKS = Config(hosts=4, sizes=(1 << 20,), only=("inaproto", "gloo"), link=Shape(200_000_000))
LEAD_IN_BYTES = 64 << 10


def turn(seconds: float, **other: Any) -> TurnResult:
    """Ten all-reduces of 1 MiB."""
    told = TurnResult(
        10,
        10 * seconds,
        {"switch": 0.25, "hosts": 0.25, "ranks": 0.5},
        3.0,
        4.0,
        (10 << 20) + LEAD_IN_BYTES,
        0,
        0,
        "",
        "switch",
    )
    return replace(told, **other)


def entry(name: str, *seconds: float, config: Config = LINKS, **other: Any) -> Entry:
    turns = [turn(one, **other) for one in seconds]
    return entry_of(config, name, 1 << 20, turns, turn(9.0))


def report(*entries: Entry, config: Config = LINKS) -> dict[str, Any]:
    peers = {"gloo": {"measured": False, "version": None, "why_not": "torch==2.13.0 is not installed"}}
    env = {
        "cpu": "some",
        "cores_usable": 2,
        "cores": 2,
        "kernel": "6",
        "load": [1.0, 1, 1],
        "load_after": [2.5, 1, 1],
    }
    return document(config=config, hosts=[config.hosts], env=env, peers=peers, entries=entries)


def shown(told: dict[str, Any]) -> str:
    text = io.StringIO()
    show(Console(file=text, width=130), told)
    return text.getvalue()


@pytest.mark.parametrize(
    ("text", "rate"), [("200M", 200_000_000), ("1G", 10**9), ("2.5Gbit/s", 2_500_000_000)]
)
def test_rates_have_units_of_1000(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


def test_links_without_a_rate_have_no_line_and_no_piece_of_cable() -> None:
    assert (parse_link("unshaped"), parse_link("1G")) == (0, 10**9)
    config = replace(LINKS, port="xdp:{}", link=Shape(0))
    assert not config.has_cables
    assert replace(config, link=Shape(0, loss=0.1)).has_cables
    told = report(entry("inaproto", 0.05, config=config), config=config)
    assert (told["line_rate_bps"], told["rows"][0]["pct_line"]) == (None, None)
    assert "# unshaped links (ports xdp:{})" in shown(told)
    assert "% line" not in shown(told)
    assert "<svg" in drawing(told)


def test_delays_and_losses() -> None:
    assert [parse_delay(text) for text in ("0us", "100us", "2ms", "1s")] == [0, 100, 2000, 1_000_000]
    assert [parse_share(text) for text in ("0", "0.1%", "0.001")] == pytest.approx([0, 0.001, 0.001])


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_rate, ""), (parse_rate, "1T"), (parse_rate, "9K"), (parse_delay, "100"), (parse_delay, "-1us"),
     (parse_share, "1"), (parse_share, "nan"), (parse_share, "-0.1"), (parse_share, "1%%"),
     (parse_settings, ""), (parse_settings, "window"), (parse_settings, "hosts=2")],
)  # fmt: skip
def test_what_is_no_link_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="for example"):
        parse(text)


def test_a_turn_has_so_many_all_reduces_as_fit_into_its_time_and_its_memory() -> None:
    config = replace(LINKS, sizes=(64 << 10, 64 << 20), turn_s=1.0)
    assert config.operations(64 << 10, 0.1) == 10
    assert config.operations(64 << 10, 1e-6) == 64
    assert config.operations(64 << 20, 1e-6) == 1
    assert config.operations(64 << 10, 100.0) == 1
    assert replace(config, group=16).operations(64 << 10, 0.1) == 16
    assert config.pool_bytes == 64 << 20


def test_a_row_has_the_median_of_rounds_and_each_of_them() -> None:
    told = report(entry("inaproto", 0.05, 0.04, 0.09, resent=30), entry("gloo", 0.06, 0.08, 0.09, path=""))
    ours, theirs = told["rows"]
    assert (ours["contender"], ours["hosts"], ours["path"]) == ("inaproto", 4, "switch")
    assert ours["time_us"] == pytest.approx(50_000)
    assert ours["samples_us"] == pytest.approx([50_000, 40_000, 90_000])
    assert ours["pct_line"] == pytest.approx(100 * 8 * (1 << 20) / 0.05 / 200e6)
    assert ours["pct_bound"] == pytest.approx(100 * 1024 / 1082)
    assert theirs["pct_bound"] == pytest.approx(100 * 4 / 6)
    assert [one["operations"] for one in ours["turns"]] == [10, 10, 10]


def test_a_ratio_is_that_of_the_two_times_of_one_round() -> None:
    [ratio] = report(entry("inaproto", 0.05, 0.04, 0.09), entry("gloo", 0.06, 0.08, 0.09))["ratios"]
    assert (ratio["peer"], ratio["contender"], ratio["rounds"]) == ("gloo", "inaproto", 3)
    assert [ratio["min"], ratio["median"], ratio["max"]] == pytest.approx([1.0, 1.2, 2.0])


def test_cpu_is_that_of_a_gigabyte_the_small_all_reduce_before_included() -> None:
    [row] = report(entry("inaproto", 0.05, 0.05))["rows"]
    whole = 1e9 / ((10 << 20) + LEAD_IN_BYTES)
    assert row["cpu_s_per_gb"] == pytest.approx(whole)
    assert row["cpu_s_per_gb_parts"] == pytest.approx(
        {"switch": whole / 4, "hosts": whole / 4, "ranks": whole / 2}
    )
    assert row["switch_gbps_per_core"] == pytest.approx(8 * 4 / (whole / 4))


def test_a_job_that_was_not_summed_by_the_switch_says_nothing_of_its_core() -> None:
    [row] = report(entry("inaproto", 0.05, path="chain"))["rows"]
    assert row["switch_gbps_per_core"] is None


def test_another_inaproto_has_the_same_links_and_other_settings() -> None:
    config = replace(
        LINKS, before="python", before_with=parse_settings("port=xdp,window=4,message-packets=9")
    )
    other = config.of_before()
    assert (other.port, other.window, other.message_packets) == ("xdp:{}", 4, 9)
    assert (other.has_cables, config.has_cables, LINKS.has_cables) == (True, True, False)
    told = report(entry("inaproto", 0.05, config=config), entry("before", 0.1, config=config), config=config)
    assert [(ratio["peer"], ratio["median"]) for ratio in told["ratios"]] == [("before", pytest.approx(2.0))]
    assert "(before: port=xdp:{},window=4,message_packets=9)" in shown(told)


@pytest.mark.parametrize(("path_mtu", "link_mtu"), [(256, 1500), (1024, 1500), (2048, 3822), (4096, 9000)])
def test_links_have_room_for_packets_and_xdp_ports_for_those_of_links(path_mtu: int, link_mtu: int) -> None:
    assert replace(LINKS, mtu=path_mtu).link_mtu == link_mtu
    assert (chunk_for(link_mtu) is None) == (path_mtu == 4096)


def test_what_failed_is_told_and_the_rest_is_kept() -> None:
    told = report(entry("inaproto", 0.05)) | {"failures": ["8 hosts: h3 ended with status 1"]}
    assert "FAILED: 8 hosts: h3 ended with status 1" in shown(told)
    assert told["rows"][0]["machine_cpu_s_per_gb"] == pytest.approx(3e9 / ((10 << 20) + LEAD_IN_BYTES))


def test_what_others_had_of_the_machine_is_told() -> None:
    """Of two processors in 4 s: 3 s were used, 1 s by the contender."""
    assert report(entry("inaproto", 0.05, 0.06))["rows"][0]["others_share"] == pytest.approx(0.25)


def test_packets_that_were_sent_again_are_told_beside_all() -> None:
    [row] = report(entry("inaproto", 0.05, 0.05, resent=50))["rows"]
    of_1_mib, of_64_kib = 1025, 65  # each of 7 messages, and that of the small one, has a header
    assert row["packets"] == 2 * 4 * (10 * of_1_mib + of_64_kib)
    assert (row["resent"], row["resent_share"]) == (100, 100 / row["packets"])
    [row] = report(entry("gloo", 0.05, 0.05, resent=None))["rows"]
    assert (row["resent"], row["packets"], row["resent_share"]) == (None, None, None)


def test_a_row_with_a_wrong_element_counts_for_nothing() -> None:
    """One of a warm-up, too."""
    wrong = entry("inaproto", 0.05, 0.05, wrong=1, example="element 7 is 1.0, expected 2.0")
    told = report(wrong, entry("gloo", 0.06, 0.06))
    row = told["rows"][0]
    assert told["wrong"] == row["wrong"] == 2
    assert row["algbw"] is row["busbw"] is row["cpu_s_per_gb"] is row["pct_line"] is None
    assert told["ratios"][0]["median"] is None
    assert "element 7 is 1.0, expected 2.0" in shown(told)
    warm_up = entry_of(LINKS, "inaproto", 1 << 20, [turn(0.05)], turn(0.05, wrong=3))
    assert report(warm_up)["rows"][0]["algbw"] is None


def test_the_table_tells_the_figures_the_machine_and_who_is_missing() -> None:
    told = report(entry("inaproto", 0.05, 0.04, resent=50, path="chain"), entry("gloo", 0.06, 0.06, path=""))
    text = shown(json.loads(json.dumps(told)))
    assert "links of 200 Mbit/s" in text
    assert "load 1.0 then 2.5" in text
    assert "gloo: not measured: torch==2.13.0 is not installed" in text
    row = next(line for line in text.splitlines() if "inaproto (chain)" in line).split()
    assert row[:2] == ["4", "1M"]
    assert row[-1] == "0"
    assert [size_said(size) for size in (1, 1 << 10, 1536, 3 << 20, 1 << 30)] == [
        "1",
        "1K",
        "1536",
        "3M",
        "1G",
    ]


def test_the_picture_has_a_panel_for_each_number_of_hosts_and_no_row_that_is_wrong() -> None:
    eight = replace(LINKS, hosts=8)
    told = report(entry("inaproto", 0.05, 0.04), entry("gloo", 0.06, 0.07))
    told["rows"] += report(entry("inaproto", 0.05, 0.04, config=eight), config=eight)["rows"]
    told["config"]["hosts"] = [4, 8]
    picture = drawing(told)
    assert "<svg" in picture
    assert picture == drawing(json.loads(json.dumps(told)))
    assert drawing(report(entry("inaproto", 0.05, wrong=1))) != drawing(report(entry("inaproto", 0.05)))


def test_a_program_loses_frames_at_random() -> None:
    assert losing(0.25) == "4,32 0 0 4294963256,53 0 1 1073741824,6 0 0 4294967295,6 0 0 2"


class Alone:
    """All ranks in one: adds what the others have."""

    version = "none"

    def __init__(self, others: Sequence[Floats]) -> None:
        self.others = others

    def memory(self, elements: int) -> Floats:
        self._memory = np.zeros(elements, np.float32)
        return self._memory

    def all_reduce(self, parts: Sequence[slice]) -> None:
        for part in parts:
            for other in self.others:
                self._memory[part] += other[part]

    def path(self) -> str:
        return "nowhere"

    def close(self) -> None: ...


PLAN = TurnPlan(elements=5000, operations=3, group=2, first=SHIFTS - 2)


def played(spoil: Callable[[Floats], None]) -> dict[str, Any]:
    """What rank 0 of two finds in a turn of which the results are spoilt."""
    datas = [Data(elements_max=5000, ranks=2, rank=rank) for rank in range(2)]
    memories = [np.zeros(4 * 5000 + LEAD_IN_MAX, np.float32) for _ in range(2)]
    turns = [Turn(PLAN, memory, data) for memory, data in zip(memories, datas, strict=True)]
    for one in turns:
        one.prepare()
    collective = Alone([memories[1].copy()])
    collective._memory = memories[0]
    done = turns[0].go(collective)
    assert set(done) == {"seconds", "cpu_s"}
    spoil(memories[0])
    return turns[0].check(collective)


def test_results_of_a_turn_are_checked_each_element() -> None:
    assert played(lambda memory: None) == {"wrong": 0, "example": "", "path": "nowhere"}

    def one(memory: Floats) -> None:
        memory[5000 + 4999] += 1

    found = played(one)
    assert found["wrong"] == 1
    assert found["example"].startswith(f"all-reduce {SHIFTS - 1}: element 4999 is ")


def test_a_result_of_another_all_reduce_is_wrong() -> None:
    def stale(memory: Floats) -> None:
        memory[10_000:15_000] = memory[5000:10_000]

    assert played(stale)["wrong"] > 4900


def test_ranks_of_peers_load_nothing_of_inaproto() -> None:
    loaded = "[name for name in sys.modules if name.startswith('inaproto.')]"
    code = f"import sys, inaproto_hil.ranks.stepping; print({loaded})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_peer_that_is_not_there_is_named_with_what_gets_it(tmp_path: Path) -> None:
    tools = Tools(tmp_path / "bin" / "python")
    tools.look(["gloo"])
    assert tools.why_not("gloo", LINKS) == (
        f"torch==2.13.0 is not installed: there is no {tmp_path / 'bin' / 'python'}; "
        "inaproto bench peers --install gets it"
    )
    assert "one machine alone" in str(tools.why_not("mpi", LINKS))
    broken = Tools(Path("/bin/false"))
    broken.look(["mpi"])
    assert "does not load by /bin/false (no word)" in str(broken.why_not("mpi", replace(LINKS, link=None)))


def test_the_environment_of_peers_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_environment().parent == Path("/somewhere/inaproto")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--hosts", "1"], "numbers of hosts from 2"),
        (["--sizes", "6"], "multiples of 4"),
        (["--only", "nccl"], "there are inaproto, buffer, gloo, mpi"),
        (["--loss", "1%"], "give --link, too"),
        (["--link", "1G", "--apart"], "leave --link out"),
        (["--link", "fast"], "not the rate of a link"),
        (["--mtu", "1000"], "is none; there are"),
    ],
)
def test_wrong_options_are_refused(words: list[str], why: str) -> None:
    done = CliRunner().invoke(peers_bench, words)
    assert done.exit_code == 2
    assert why in " ".join(done.output.replace("│", " ").split())
