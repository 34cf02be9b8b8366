"""The controller's page: what is on it, that nothing on it is markup of others, and that it stays small."""

from __future__ import annotations

from html.parser import HTMLParser
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from inaproto.core.sharing.events import Mark, Noted
from inaproto.errors import ConfigError
from inaproto_controller.cluster.desired import Job, JobSpec, JobState, TreeNames
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.pictures.job_colours import JobColours, colour_of
from inaproto_controller.pictures.topology_picture import NODES_DRAWN_MAX, ClusterLayout
from inaproto_controller.service.history_records import Fallback, Led, RoundSeen, TreeMove, TurnSeen
from inaproto_controller.service.metrics import controller_metrics
from inaproto_controller.service.page.attention import needs_attention
from inaproto_controller.service.page.page import shared_jobs, span
from inaproto_controller.service.page.timeline_picture import (
    ELSEWHERE,
    LANES_MAX,
    LEFT,
    RIGHT,
    WIDTH,
    Happened,
    timeline,
)
from inaproto_controller.service.plan import BEHIND
from inaproto_controller.service.why_no_tree import GAINS_NOTHING
from tests.controller.live_controllers import LiveController, live_controller, turn
from tests.controller.planned_cluster import racks

HOSTILE = "<script>alert('x')</script>\"&"
VOID = {"meta", "link", "br", "line", "circle", "rect", "path"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        assert tag == "script" or "src" not in dict(attrs)
        is_closed = (self.get_starttag_text() or "").endswith("/>")
        if tag not in VOID or (tag in ("line", "rect", "circle", "path") and not is_closed):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


async def fetched(live: LiveController, query: str = "") -> tuple[int, dict[str, str], str]:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    def get() -> tuple[int, dict[str, str], str]:
        try:
            with urlopen(live.url + query, timeout=60) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read().decode()

    return await trio.to_thread.run_sync(get)


async def test_what_others_say_is_text_on_the_page(runtime_dir: Path) -> None:
    async with live_controller(runtime_dir) as live:
        await live.start_agents(without="h7")
        await live.submit("train", 2)
        await live.runs("train")
        await live.submit("waits", 8)
        await live.until("waits", lambda job: bool(job.why))
        turn(live, HOSTILE, HOSTILE, 1)
        live.history.acted("pool", Noted(Mark.ABORTED_LATE))
        live.history.fell_back(HOSTILE, HOSTILE)
        status, headers, text = await fetched(live)
        unchanging = await fetched(live, "?refresh_s=0&window_s=10")
        script = await fetched(live, "live.js")
        wrong = [await fetched(live, query) for query in ("?refresh_s=-1", "?window_s=nan", "?x=1")]
        metrics = {one.name: one for one in controller_metrics(live.controller.status())}
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 1, "its own"
    assert '<script src="live.js" defer></script>' in text
    assert HOSTILE.replace(" ", "") in page.text.replace(" ", "")
    for word in (
        "leads, term 1",
        "waits for 8 hosts: 5 of 8 are free, 1 do not report",
        "1 begun, 1 committed, 1 aborted: 1 late",
        "12 of 13",
        "Not heard of lately: h7",
    ):
        assert word in page.text
    assert 'http-equiv="refresh" content="5"' in text
    assert 'http-equiv="refresh"' not in unchanging[2]
    assert "<script" not in unchanging[2]
    assert (script[0], script[1]["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert [code for code, *_ in wrong] == [422, 422, 422]
    jobs = {sample.labels["state"]: sample.value for sample in metrics["inaproto_controller_jobs"].samples}
    assert jobs == dict.fromkeys((state.value for state in JobState), 0) | {"running": 1, "queued": 1}
    agents = {
        sample.labels["presence"]: sample.value for sample in metrics["inaproto_controller_agents"].samples
    }
    assert agents == {"up": 12, "unknown": 1, "gone": 0}
    (aborts,) = (s for s in metrics["inaproto_controller_aborts"].samples if s.labels["reason"] == "late")
    assert aborts.value == 1


async def test_a_name_that_leads_here_from_elsewhere_is_not_served(runtime_dir: Path) -> None:
    """A page of somebody else, whose name is made to point to this machine, could submit jobs."""

    def ask(host: str, method: str, path: str) -> int:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            headers = {"host": host, "content-type": "application/json"}
            connection.request(method, path, body='{"name": "j", "hosts": 1}', headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    async with live_controller(runtime_dir) as live:
        port = int(live.url.rstrip("/").rpartition(":")[2])
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "10.0.0.1",
            "[::1",
            "",
            "127.0.0.1.evil.example",
        ):
            for method, path in (("GET", "/"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs")):
                assert await trio.to_thread.run_sync(ask, host, method, path) in (400, 403), host
        assert live.controller.jobs(live=False) == []
        for host in (f"127.0.0.1:{port}", "localhost", f"localhost:{port}", "[::1]:80", "127.0.0.2"):
            assert await trio.to_thread.run_sync(ask, host, "GET", "/") == 200, host


async def test_one_that_does_not_lead_says_so(runtime_dir: Path) -> None:
    async with live_controller(runtime_dir) as live:
        live.controller._follow("the store is gone")
        _, _, text = await fetched(live)
    assert "It does not lead: the store is gone." in Page(text).text


def big(hosts: int) -> GraphTopology:
    names = tuple(f"host-{number}" for number in range(hosts))
    switches = (GraphSwitch("leaf", 1), GraphSwitch("island"), GraphSwitch("spine", 1))
    links = [GraphLink(host, hosts) for host in range(hosts)] + [GraphLink(hosts, hosts + 2)] * 2
    return GraphTopology(names, switches, tuple(links))


def job(
    number: int,
    *hosts: str,
    tree: TreeNames | None = None,
    state: JobState = JobState.RUNNING,
    name: str = "",
    why: str = "",
) -> Job:
    spec = JobSpec(name=name or f"job{number}", hosts=len(hosts))
    return Job(number=number, spec=spec, token_hash="", hosts=hosts, tree=tree, state=state, why=why)


def test_a_cluster_that_is_too_large_is_shown_by_what_jobs_use() -> None:
    used = ("host-3", "host-1999")
    tree = TreeNames("leaf", ("leaf",), tuple(f"{host} - leaf" for host in used))
    picture = ClusterLayout(big(2000)).picture([job(1, *used, tree=tree)], {})
    assert [node.name for node in picture.nodes if node.is_host] == list(used)
    assert len(picture.trees) == 2
    assert picture.left_out == ["1998 of 2000 hosts"]
    whole = ClusterLayout(big(NODES_DRAWN_MAX)).picture([], {})
    assert not whole.left_out
    assert {node.name for node in whole.nodes} >= {"leaf", "spine"}
    assert "island" not in {node.name for node in whole.nodes}, "no host reaches it"


def test_trees_on_one_link_are_drawn_beside_each_other() -> None:
    topology = racks()
    tree = TreeNames("leaf0", ("leaf0",), ("h0 - leaf0", "h1 - leaf0"))
    picture = ClusterLayout(topology).picture([job(1, "h0", tree=tree), job(2, "h1", tree=tree)], {})
    over = [line for line in picture.trees if line.name == "h0 - leaf0"]
    assert len(over) == 2
    assert (over[0].x1, over[0].y1) != (over[1].x1, over[1].y1)
    assert over[0].colour != over[1].colour
    gone = TreeNames("x", ("x",), ("h0 - x",))
    assert not ClusterLayout(topology).picture([job(1, "h0", tree=gone)], {}).trees, (
        "of an older cluster file"
    )


def test_bars_stay_within_the_timeline() -> None:
    turns = [
        TurnSeen("p", "long", 1, 0, None, began_at=0.0),
        TurnSeen("p", "short", 2, 0, 10, began_at=999.9999, ended_at=1000.0),
        TurnSeen("p", "long#1/2", 5, 0, 10, began_at=950.0, ended_at=960.0),
        TurnSeen("p", "past", 3, 0, 10, began_at=900.0, ended_at=939.0),
        TurnSeen("p", "to come", 4, 0, 10, began_at=1001.0),
    ]
    picture = timeline(Happened(turns), JobColours([job(13, name="long")]), now=1000.0, window_s=60.0)
    long, short, ring = picture.bars
    assert ring.colour == long.colour == colour_of(13), "a ring of several of its job"
    assert (long.x, long.x + long.width) == (LEFT, WIDTH - RIGHT)
    assert long.is_open
    assert short.x + short.width <= WIDTH - RIGHT
    many = [TurnSeen("p", f"job{n}", n, 0, None, began_at=990.0) for n in range(100)]
    crowded = timeline(Happened(many), JobColours([]), now=1000.0, window_s=60.0)
    assert len(crowded.lanes) == len(crowded.bars) + 1 == LANES_MAX
    assert crowded.left_out == [f"{101 - LANES_MAX} of 101 lanes"]


def test_rounds_fallbacks_migrations_and_leaders_are_marked_where_they_belong() -> None:
    happened = Happened(
        [TurnSeen("p", "a#0/2", 1, 0, 9, 970.0, 985.0), TurnSeen("p", "a#1/2", 2, 0, 9, 985.0)],
        [
            RoundSeen("p", 1, 1, 969.0, 970.0, "committed", "turn 1 to a"),
            RoundSeen("p", 1, 2, 971.0, 972.0, "votes are missing"),
            RoundSeen("p", 1, 3, 999.0),
        ],
        [Fallback("a", "why", 980.0), Fallback("b", "why", 981.0), Fallback("a", "long ago", 100.0)],
        [TreeMove("b", "x", "y", 930.0, (("draining", 930.0),), 970.0), TreeMove("a", "x", "y", 990.0)],
        [Led(7, 975.0), Led(6, 10.0)],
    )
    picture = timeline(happened, JobColours([]), now=1000.0, window_s=60.0)
    labels = [lane.label for lane in picture.lanes]
    assert labels == ["p: rounds", "a#0/2", "a#1/2", ELSEWHERE, "b"]
    assert [lane.share for lane in picture.lanes] == ["", "25 %", "25 %", "", ""]
    middles = dict(zip(labels, (lane.middle for lane in picture.lanes), strict=True))
    seen = [
        (mark.kind, round((mark.x - LEFT) / (WIDTH - RIGHT - LEFT) * 60), mark.y) for mark in picture.marks
    ]
    assert seen == [
        ("committed", 30, middles["p: rounds"]),
        ("aborted", 32, middles["p: rounds"]),
        ("move", 0, middles["b"]),
        ("move", 50, middles["a#0/2"]),
        ("move", 50, middles["a#1/2"]),
        ("fallback", 40, middles["a#0/2"]),
        ("fallback", 40, middles["a#1/2"]),
        ("fallback", 41, middles["b"]),
    ]
    assert picture.marks[2].width == pytest.approx((WIDTH - RIGHT - LEFT) / 2), "from when the window began"
    assert [one.label for one in picture.leaders] == ["term 7"]


@pytest.mark.parametrize("window_s", [1.0, 10.0, 60.0, 61.5, 600.0, 3600.0, 86400.0])
def test_ticks_are_at_round_times_and_leave_each_other_room(window_s: float) -> None:
    turns = [TurnSeen("p", "a", 1, 0, None, began_at=0.0)]
    ticks = timeline(Happened(turns), JobColours([]), now=1_700_000_000.7, window_s=window_s).ticks
    assert ticks[-1].label == "now, 22:13:20"
    places = [tick.x for tick in ticks]
    assert all(later - one >= 60 for one, later in pairwise(places))
    assert all(LEFT <= place <= WIDTH - RIGHT for place in places)
    assert len(ticks) >= 2 or window_s < 2


def test_what_needs_attention_is_said_the_worst_first() -> None:
    status = {"leads": True, "problem": ""}
    presences = {"h0": "up", "h1": "unknown", "h2": "gone"} | {f"s{n}": "gone" for n in range(20)}
    jobs = [
        job(1, "h0", "h1"),
        job(2, state=JobState.QUEUED, why="waits for 2 hosts"),
        job(3, "h0", "h1", tree=TreeNames("s", ("s",), ())),
    ]
    rounds = [RoundSeen("p", 1, n, n, n, "votes are missing" if n % 5 else "committed") for n in range(20)]
    jobs.append(job(4, state=JobState.QUEUED, why=BEHIND))
    reasons = {1: "leaf0 is taken by big"}
    found = needs_attention(status, presences, jobs, rounds, reasons)
    assert [(one.kind, one.text) for one in found] == [
        ("bad", "Silent for longer than the lease: h2, s0, s1, s2, s3, s4, s5, s6 and 13 more"),
        ("warn", "Not heard of lately: h1"),
        ("warn", "job2 waits for 2 hosts"),
        ("warn", "Without a tree: job1: leaf0 is taken by big"),
        ("warn", "p: 16 of its last 20 rounds were aborted, mostly: votes are missing"),
    ]
    assert needs_attention(status, {"h0": "up"}, jobs[2:], rounds[:9], reasons) == []
    due = {1: f"bert-base-4 {GAINS_NOTHING}"}
    assert needs_attention(status, {"h0": "up"}, jobs[:1], [], due) == [], "who gains nothing misses nothing"
    many = [job(n, state=JobState.QUEUED, why="waits") for n in range(40)]
    assert [one.text for one in needs_attention(status, {}, many, [], {})][-1] == "and 28 more"


async def test_jobs_on_the_path_shared_are_told_as_their_root_reports_them(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"hosts": ["h0", "h1"], "root": "spine", "pool": "shared", "ring": "standing", "epoch": 3}
    job |= {"reason": "", "slots": "stable", "wished": "", "refusals": 0}
    other = job | {"root": "", "ring": "refused", "reason": HOSTILE, "slots": "acquiring", "refusals": 2}
    jobs = {"a": job, "b": other | {"wished": "spine1"}}
    found = shared_jobs(jobs, JobColours([]))
    told = ("hosts", "root", "slots", "ring", "is_wrong")
    assert [[row[key] for key in told] for row in found] == [
        ["h0, h1", "spine", "stable", "standing", False],
        ["h0, h1", "none, to be spine1", "acquiring, refused 2 times", f"refused: {HOSTILE}", True],
    ]
    async with live_controller(runtime_dir) as live:
        status = live.controller.status() | {"trees": {"jobs": jobs}}
        monkeypatch.setattr(live.controller, "status", lambda: status)
        _, _, text = await fetched(live)
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 1
    assert "none, to be spine1 acquiring, refused 2 times refused:" in page.text


def test_spans_of_time_are_for_people() -> None:
    spans = (0.0, 0.0124, 0.9996, 1.0, 3.52, 60.0, 90.0, 3600.0, 7320.0, 86400.0, 190_000.0)
    assert [span(one) for one in spans] == [
        "0 ms",
        "12 ms",
        "1 s",
        "1 s",
        "3.5 s",
        "1 min",
        "1 min 30 s",
        "1 h",
        "2 h 2 min",
        "1 d",
        "2 d 4 h",
    ]


def test_links_keep_their_names() -> None:
    topology = big(3)
    assert topology.link_names[-2:] == ("leaf - spine", "leaf - spine #2")
    with pytest.raises(ConfigError):
        GraphTopology((), (), ())
