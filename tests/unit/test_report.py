"""What a report makes of statuses: shares, savings, reasons, and whether it adds up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from inaproto.core.rendezvous.events import JobView
from inaproto.daemon.host.job_totals import OTHER_SIZES, SIZES_MAX
from inaproto.daemon.host.totals import JOBS_MAX, HostTotals
from inaproto.daemon.switch.job_ways import JobWays
from inaproto.errors import ConfigError
from inaproto.units import Instant, S
from inaproto.wire.messages.client import DonePath
from inaproto_controller.report.command import report
from inaproto_controller.report.document import document, packets
from inaproto_controller.report.page import page
from inaproto_controller.report.records import Statuses
from inaproto_controller.report.savings import links_of
from inaproto_controller.report.words import notes, verdict

RUN = 77
Done = tuple[DonePath, int, float]


def host_told(name: str, done: Sequence[Done], *, job: str = "train", hosts: int = 4) -> dict[str, Any]:
    """Status of a host that had those all-reduces, path, bytes and seconds, one after the other."""
    totals, now = HostTotals(), 0
    record = totals.begin(job, Instant(now))
    record.rings(RUN, size=hosts, ranks=1, hosts=hosts)
    for path, nbytes, seconds in done:
        since, now = now, now + round(seconds * S)
        totals.done(record, path, nbytes, Instant(since), Instant(now))
    return {
        "name": name,
        "mtu": 1024,
        "message_packets": 170,
        "totals": totals.status(),
        "job_totals": totals.jobs(Instant(now)),
    }


def told(hosts: Sequence[dict[str, Any]], switch: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"hosts": list(hosts), "switch": switch, "other_switches": []}


def made(statuses: Statuses, **links: float) -> dict[str, Any]:
    rings = statuses.rings("train")
    known = links_of(rings, statuses.switches, gbit=links.get("gbit"), hop_us=links.get("hop_us"))
    found = document("train", rings, statuses, known, controller=None, version="1")
    return found | {"verdict": verdict(found), "notes": list(notes(found))}


def test_the_model_is_that_of_the_paper() -> None:
    done: list[Done] = [("switch", 1_000_000, 0.1), ("switch", 3_000_000, 0.1), ("chain", 1_000_000, 0.1)]
    found = made(Statuses.of([told([host_told("h0", done)])]), gbit=8.0, hop_us=10.0)
    switch, chain = found["paths"]
    # Four hosts: 6 hops and 6/4 of the bytes by a ring, 1 hop and all bytes by the network; 1 GB/s.
    assert switch["model"] == {
        "ring_s": pytest.approx(2 * 6 * 10e-6 + 1.5 * 4e-3),
        "network_s": pytest.approx(2 * 10e-6 + 4e-3),
    }
    assert found["by_model"]["saved_s"] == pytest.approx(2 * 5 * 10e-6 + 0.5 * 4e-3)
    assert found["by_model"]["missed_s"] == pytest.approx(5 * 10e-6 + 0.5 * 1e-3)
    assert (switch["bytes"], chain["bytes"], switch["share"]) == (4_000_000, 1_000_000, 0.8)
    assert "80.0 % of 5,000,000 bytes (2 of 3 all-reduces)" in found["verdict"][0]


def test_each_figure_of_the_links_says_where_it_is_from() -> None:
    done: list[Done] = [("switch", 1000, 0.1)]
    rings = Statuses.of([told([host_told("h0", done), host_told("h1", done)])]).rings("train")
    seen = {"hosts": ["h0", "h1"], "rate_bps": 8e9, "latency_ns": 5000}
    switches = [{"host_links": {"measured": [seen]}}]
    known = links_of(rings, switches, gbit=None, hop_us=0.0)
    assert (known.bytes_per_s, known.hop_s) == (1e9, 0.0), "0 is a figure"
    assert str(known) == "8 Gbit/s, measured, and 0 us a hop, given"
    assert (known.rate_source, known.hop_source, known.source) == ("measured", "given", "mixed")
    assert (
        str(links_of(rings, switches, gbit=16, hop_us=None)) == "16 Gbit/s, given, and 5 us a hop, measured"
    )
    assert str(links_of(rings, (), gbit=None, hop_us=2)) == "100 Gbit/s, assumed, and 2 us a hop, given"
    assert str(links_of(rings, switches, gbit=None, hop_us=None)) == "8 Gbit/s and 5 us a hop, measured"


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ([], ["--link-gbit and --hop-us"]),
        (["--link-gbit", "8"], ["--hop-us"]),
        (["--hop-us", "0"], ["--link-gbit"]),
        (["--hop-us", "0", "--link-gbit", "8"], []),
    ],
)
def test_a_note_says_which_figure_of_the_links_is_assumed(
    options: list[str], lacks: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "h0.json"
    path.write_text(json.dumps(told([host_told("h0", [("switch", 1000, 0.1)])])))
    answer = CliRunner().invoke(report, ["train", "--json", "--from", str(path), *options])
    notes = [line for line in json.loads(answer.stdout)["notes"] if "assumed" in line]
    assert [line.partition(": ")[2].partition(" say")[0] for line in notes] == lacks


@pytest.mark.parametrize("option", ["--link-gbit", "--hop-us"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e308", "1e-320", "-1"])
def test_figures_of_links_that_no_link_has_are_refused(option: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "h0.json"
    path.write_text(json.dumps(told([host_told("h0", [("switch", 1000, 0.1)])])))
    answer = CliRunner().invoke(report, ["train", "--from", str(path), option, value])
    is_fine = (option, value) == ("--hop-us", "1e-320")  # as good as 0
    assert answer.exit_code == (0 if is_fine else 2), answer.output
    assert isinstance(answer.exception, SystemExit | None), answer.exception


def test_measured_is_like_with_like() -> None:
    fast: list[Done] = [("switch", 1000, seconds) for seconds in (0.1, 0.3, 0.2)]
    slow: list[Done] = [("ring", 1000, 0.5), ("chain", 1000, 0.7)]
    alone: list[Done] = [("switch", 9000, 5.0), ("switch", 9000, 5.0), ("ring", 70, 0.1), ("ring", 70, 0.1)]
    found = made(Statuses.of([told([host_told("h0", [*fast, *slow, *alone])])]))
    measured = found["measured"]
    assert measured["saved_s"] == pytest.approx(3 * (0.6 - 0.2))
    assert measured["missed_s"] == pytest.approx(2 * (0.6 - 0.2))
    # Standard errors of both means: 0.1 / sqrt(3) and sqrt(0.02) / sqrt(2).
    assert measured["saved_s_95"] == pytest.approx(1.96 * 3 * (0.01 / 3 + 0.02 / 2) ** 0.5)
    assert measured["against"] == ["chain", "ring"]
    assert measured["bytes_compared"] == 3000, "what hosts never summed is compared with nothing"
    only = made(Statuses.of([told([host_told("h0", alone)])]))
    assert only["measured"] is None
    assert any("Nothing was measured" in line for line in only["verdict"])


def test_all_reduces_that_wait_for_each_other_are_counted_once() -> None:
    totals = HostTotals()
    record = totals.begin("train", Instant(0))
    record.rings(RUN, size=2, ranks=1, hosts=2)
    for end in (1, 2, 3):  # all called at once
        totals.done(record, "switch", 8, Instant(0), Instant(end * S))
    totals.done(record, "switch", 8, Instant(9 * S), Instant(10 * S))
    (row,) = totals.jobs(Instant(10 * S))["jobs"][0]["paths"]
    assert (row["called_s"], row["busy_s"], row["busy_s_squared"]) == (7.0, 4.0, 4.0)


def test_what_is_forgotten_still_adds_up() -> None:
    totals = HostTotals()
    records = [totals.begin(f"job{number}", Instant(0)) for number in range(JOBS_MAX)]
    for number, record in enumerate(records):
        totals.done(record, "switch", 100 + number, Instant(0), Instant(1))
    records[5].has_ended = True
    totals.begin("another", Instant(2))
    told_of = totals.jobs(Instant(3))
    assert len(told_of["jobs"]) == JOBS_MAX - 1
    assert [row["bytes"] for row in told_of["forgotten"]] == [105], "the first that has ended goes first"
    totals.begin("and another", Instant(2))
    totals.done(records[0], "ring", 7, Instant(2), Instant(3))  # it was forgotten, and goes on
    status = {"name": "h0", "mtu": 1024, "message_packets": 170, "totals": totals.status()}
    statuses = Statuses.of([told([status | {"job_totals": totals.jobs(Instant(3))}])])
    record = totals.begin("train", Instant(4))
    record.rings(RUN, size=2, ranks=1, hosts=2)
    for size in range(SIZES_MAX + 3):
        totals.done(record, "switch", size, Instant(4), Instant(5))
    rows = record.status(Instant(5))["paths"]
    assert (len(rows), rows[-1]["size"], rows[-1]["operations"]) == (SIZES_MAX + 1, OTHER_SIZES, 3)
    for one in (
        statuses,
        Statuses.of([told([status | {"totals": totals.status(), "job_totals": totals.jobs(Instant(5))}])]),
    ):
        found = document(
            "x",
            one.rings(one.jobs()[-1]),
            one,
            links_of([], (), gbit=None, hop_us=None),
            controller=None,
            version="",
        )
        for path in found["agreement"]["hosts"]["h0"].values():
            assert path["by_jobs"] == path["counted"] > 0


def view(path: str, reason: str = "", **others: Any) -> JobView:
    values: dict[str, Any] = {"ring_id": RUN, "phase": "running", **others}
    return JobView("train", size=2, ranks=(), missing=(), path=path, fallback=reason, **values)


def test_reasons_outlive_their_job() -> None:
    ways = JobWays()
    ways.look([view("switch", ring_id=RUN - 5, phase="connecting")], Instant(0))
    ways.look([view("switch")], Instant(1 * S))
    ways.look([view("chain", "no room", recoveries=1, last_recovery="a cable")], Instant(3 * S))
    ways.look([view("switch", recoveries=2, last_recovery="to return")], Instant(7 * S))
    ways.look([view("chain", "no room", recoveries=3, last_recovery="a cable")], Instant(8 * S))
    ways.look([], Instant(10 * S))
    ways.look([view("chain", "another life", ring_id=RUN + 1)], Instant(11 * S))
    old, new = ways.status(Instant(12 * S))
    assert (old["run"], old["ended"], new["run"], new["ended"]) == (RUN, True, RUN + 1, False)
    assert old["ways"] == [
        {"path": "switch", "reason": "", "times": 2, "lasted_s": 4.0},
        {"path": "chain", "reason": "no room", "times": 2, "lasted_s": 6.0},
    ]
    assert old["ring_ends"] == [{"reason": "a cable", "times": 2}, {"reason": "to return", "times": 1}]
    switch = {"dir": "x", "job_ways": [old, new], "accelerator": {"counters": {"results_out": 3}}}
    found = made(Statuses.of([told([host_told("h0", [("chain", 8, 1.0)])], switch)]))
    reasons = [(one["reason"], one["times"]) for one in found["reasons"]]
    assert reasons == [("no room", 2), ("a ring ended: a cable", 2), ("a ring ended: to return", 1)]
    assert any("Why not more of it: no room" in line for line in found["verdict"])
    assert found["agreement"]["switches"]["difference"] == 3


def test_a_switch_sends_a_header_with_each_message() -> None:
    room = 2 * 256 - 40  # of a message of two packets
    sizes = {0: 1, 1: 1, 216: 1, 217: 2, room: 2, room + 1: 3, 2 * room + 217: 6}
    assert {size: packets(size, 256, 2) for size in sizes} == sizes


def _written(document: object, path: Path) -> list[str]:
    path.write_text(json.dumps(document))
    return ["train", "--from", str(path)]


def _changed(where: Sequence[str | int], value: object) -> object:
    """A document that is ours but for one field."""
    document: Any = json.loads(json.dumps(told([host_told("h0", [("switch", 1000, 0.1)])])))
    at = document
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    return document


_RECORD: Final = ("hosts", 0, "job_totals", "jobs", 0)


@pytest.mark.parametrize(
    ("where", "value", "why"),
    [
        (("hosts",), 7, "hosts is not a list"),
        (("hosts", 0, "job_totals"), None, "hosts[0].job_totals is not an object"),
        (("hosts", 0, "mtu"), 0, "hosts[0].mtu is not a whole number"),
        (_RECORD, {"job": "train"}, "hosts[0].job_totals.jobs[0].run is not there"),
        ((*_RECORD, "job"), 5, "hosts[0].job_totals.jobs[0].job is not a text"),
        ((*_RECORD, "job"), "\ud800", "hosts[0].job_totals.jobs[0].job is not a text"),
        ((*_RECORD, "paths", 0, "operations"), 0, "operations is not a whole number from 1"),
        ((*_RECORD, "paths", 0, "busy_s"), float("inf"), "busy_s is not a number"),
        (("switch",), {"dir": "x"}, "switch.accelerator is not there"),
        (("other_switches",), [None, 3], "other_switches[1] is not an object"),
    ],
)
def test_a_document_that_is_not_ours_is_named_and_where_it_is_wrong(
    where: Sequence[str | int], value: object, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "h0.json"
    answer = CliRunner().invoke(report, _written(_changed(where, value), path))
    assert answer.exit_code == 2, answer.exception
    assert f"inaproto: --from {path}: is not what inaproto status --json writes: " in answer.stderr
    assert why in answer.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\xff", "[]"])
def test_a_file_that_is_no_document(text: str, tmp_path: Path) -> None:
    path = tmp_path / "h0.json"
    path.write_bytes(text.encode("latin-1"))
    answer = CliRunner().invoke(report, ["--from", str(path)])
    assert answer.exit_code == 2, answer.exception
    assert f"inaproto: --from {path}: " in answer.stderr


def test_paths_of_later_releases_come_last(tmp_path: Path) -> None:
    done: list[Done] = [("switch", 1000, 0.1), ("ring", 1000, 0.1)]
    document: Any = json.loads(json.dumps(told([host_told("h0", done)])))
    document["hosts"][0]["job_totals"]["jobs"][0]["paths"][0]["path"] = "hyperswitch"
    page_at = tmp_path / "page.html"
    words = _written(document, tmp_path / "h0.json")
    answer = CliRunner().invoke(report, words)
    assert answer.exit_code == 0, answer.exception
    rows = [line.split("  ")[0] for line in answer.stdout.splitlines()]
    assert rows.index("hyperswitch") == rows.index("by the hosts, in a ring") + 1
    answer = CliRunner().invoke(report, [*words, "--html", str(page_at)])
    assert answer.exit_code == 0, answer.exception
    assert "hyperswitch" in page_at.read_text()


def test_hosts_of_several_files_and_several_runs(tmp_path: Path) -> None:
    done: list[Done] = [("switch", 1000, 0.1)]
    files = []
    for number in range(2):
        files.append(tmp_path / f"h{number}.json")
        files[number].write_text(json.dumps(told([host_told(f"h{number}", done, hosts=3)])))
    named = [word for path in files for word in ("--from", str(path))]
    answer = CliRunner().invoke(report, ["train", "--json", *named])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert (found["hosts"], found["hosts_told"], found["operations"]) == (3, ["h0", "h1"], 1)
    assert any("2 of the job's 3 hosts were asked" in line for line in found["notes"])
    assert json.loads(CliRunner().invoke(report, ["--json", *named]).stdout) == {"jobs": ["train"]}
    unknown = CliRunner().invoke(report, ["other", *named])
    assert (unknown.exit_code, "known: train" in unknown.output) == (1, True)
    unknown = CliRunner().invoke(report, ["train", "--run", "5", *named])
    assert (unknown.exit_code, f"known: {RUN}" in unknown.output) == (1, True)
    with pytest.raises(ConfigError, match="status --json"):
        Statuses.of([{"something": 1}])


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names() -> None:
    done: list[Done] = [("switch", 1000, 0.1), ("chain", 1000, 0.3)] * 3
    found = made(Statuses.of([told([host_told("h0", done)])]))
    drawn = page(found | {"job": "<b>train</b>"})
    assert "&lt;b&gt;train" in drawn
    assert "<b>train" not in drawn
    assert drawn.count("<svg") == 2
    assert "src=" not in drawn
    alone = made(Statuses.of([told([host_told("h0", [("local", 8, 0.1)], hosts=1)])]))
    assert any("one host" in line for line in alone["verdict"])
    assert "<svg" in page(alone)
