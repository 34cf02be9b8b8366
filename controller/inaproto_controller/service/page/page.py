"""The page of a running controller: one document and one small script, which need nothing from elsewhere.

It says what the controller knows at that moment; the script asks for it again, and says so when there is no
answer. Everything that comes from outside (names, reasons) is escaped, and no script but that one runs; every
table and picture has a limit, and says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field

from inaproto_controller.cluster.desired import Job, JobState
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.pictures.job_colours import JobColours, colour_of
from inaproto_controller.pictures.topology_picture import TREES_DRAWN_MAX, ClusterLayout
from inaproto_controller.service.controller import Controller
from inaproto_controller.service.history_records import TreeMove
from inaproto_controller.service.live_history import LiveHistory
from inaproto_controller.service.page.attention import lacks_tree, needs_attention
from inaproto_controller.service.page.timeline_picture import Happened, clock, moment, timeline
from inaproto_controller.service.plan import BEHIND

JOBS_SHOWN_MAX: Final = 200
POOLS_SHOWN_MAX: Final = 64
EVENTS_SHOWN_MAX: Final = 20
HOSTS_NAMED_MAX: Final = 8
WINDOWS: Final = (10, 60, 600, 3600)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Asked(BaseModel):
    """The page's parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    refresh_s: int = Field(default=5, ge=0, le=3600)
    """0: it stays as it is."""
    window_s: float = Field(default=60.0, ge=1.0, le=86400.0)
    """Of the timeline."""

    def with_refresh(self, seconds: int) -> str:
        return "?" + urlencode({"refresh_s": seconds, "window_s": f"{self.window_s:g}"})

    def with_window(self, seconds: float) -> str:
        return "?" + urlencode({"refresh_s": self.refresh_s, "window_s": f"{seconds:g}"})


@dataclass(frozen=True, slots=True)
class Tile:
    title: str
    value: object
    more: str


class LivePage:
    def __init__(self, topology: GraphTopology) -> None:
        self._layout = ClusterLayout(topology)
        environment = Environment(
            loader=PackageLoader("inaproto_controller.service", "page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["clock"] = clock
        environment.filters["moment"] = moment
        environment.filters["span"] = span
        self._template = environment.get_template("page.html.j2")
        self.script = resources.files(__package__).joinpath("live.js").read_text("utf-8")

    def render(self, controller: Controller, asked: Asked) -> str:
        status, history = controller.status(), controller.history
        now, counts = history.now(), history.status()
        jobs = controller.jobs(live=False) if status["leads"] else []
        live = [job for job in jobs if job.state.is_live]
        over = [job for job in reversed(jobs) if not job.state.is_live]
        shown = [*live, *over][:JOBS_SHOWN_MAX]
        presences = {name: agent["presence"] for name, agent in status["agents"].items()}
        colours = JobColours([*reversed(over), *live])
        with_trees = [job for job in live if job.tree is not None]
        return self._template.render(
            now=now,
            asked=asked,
            windows=WINDOWS,
            status=status,
            tiles=_tiles(status, counts, presences),
            attention=needs_attention(status, presences, live, history.last_rounds, controller.without_trees),
            cluster=self._layout.picture(live, presences),
            drawn=[_row(job) for job in with_trees[:TREES_DRAWN_MAX]],
            jobs=[_row(job) for job in shown],
            jobs_left_out=len(jobs) - len(shown),
            shared=shared_jobs(status.get("trees", {}).get("jobs", {}), colours),
            timeline=timeline(
                _happened(history, now - asked.window_s), colours, now=now, window_s=asked.window_s
            ),
            pools=[_pool(group) for group in status["sharing"][:POOLS_SHOWN_MAX]],
            history=history,
            counts=counts,
            aborts=[(why.replace("_", " "), count) for why, count in counts["aborts"].items() if count],
            rounds=history.last_rounds[: -EVENTS_SHOWN_MAX - 1 : -1],
            without_tree=_lacking(live, controller.without_trees),
            fallbacks=history.fallbacks[: -EVENTS_SHOWN_MAX - 1 : -1],
            moves=[_move(one, now) for one in history.moves[: -EVENTS_SHOWN_MAX - 1 : -1]],
        )


def _lacking(live: Sequence[Job], reasons: Mapping[int, str]) -> list[tuple[str, str]]:
    """Jobs of several hosts without a tree, and why."""
    lacking = [job for job in live if lacks_tree(job)]
    return [(job.spec.name, reasons.get(job.number, "")) for job in lacking[:EVENTS_SHOWN_MAX]]


def _happened(history: LiveHistory, since: float) -> Happened:
    return Happened(
        history.turns(since), history.last_rounds, history.fallbacks, history.moves, history.leaders
    )


def _tiles(
    status: Mapping[str, Any], counts: Mapping[str, Any], presences: Mapping[str, str]
) -> Iterator[Tile]:
    jobs, aborts = status["jobs"], counts["aborts"]
    up = sum(presence == "up" for presence in presences.values())
    waiting = jobs["submitted"] + jobs["queued"] + jobs["placed"]
    over = ", ".join(f"{jobs[state]} {state}" for state in ("ended", "failed", "cancelled") if jobs[state])
    yield Tile("jobs running", jobs["running"], f"{waiting} waiting" + (f", {over}" if over else ""))
    yield Tile("hosts and switches", f"{up} of {len(presences)}", "report")
    yield Tile("turns at pools", counts["turns"], f"{counts['turns_standing']} stand")
    yield Tile("rounds committed", counts["rounds"]["committed"], f"{sum(aborts.values())} aborted")
    yield Tile("fallbacks", counts["fallbacks"], "to the hosts")
    yield Tile("migrations", counts["migrations"], "of trees")


def _row(job: Job) -> dict[str, Any]:
    """Row of the table of jobs."""
    return {
        "number": job.number,
        "name": job.spec.name,
        "colour": colour_of(job.number) if job.state.is_live and job.hosts else None,
        "state": job.state.value,
        "hosts": _named(job.hosts) if job.hosts else f"wants {job.spec.hosts}",
        "ranks": job.spec.hosts * job.spec.ranks_per_host,
        "tree": "" if job.tree is None else job.tree.root,
        "shares": job.group is not None and job.group != job.number,
        "why": job.why,
        "is_no_trouble": job.why == BEHIND or job.state is JobState.CANCELLED,
        "submitted_at": job.submitted_at,
    }


def shared_jobs(found: Mapping[str, Mapping[str, Any]], colours: JobColours) -> list[dict[str, Any]]:
    """Rows of those that the root of the fabric reports, from the status of its controller."""
    return [
        {
            "name": name,
            "colour": colours.of(name),
            "hosts": _named(job["hosts"]),
            "root": (job["root"] or "none") + (f", to be {job['wished']}" if job["wished"] else ""),
            "slots": job["slots"] + (f", refused {job['refusals']} times" if job["refusals"] else ""),
            "ring": job["ring"] + (f": {job['reason']}" if job["reason"] else ""),
            "is_wrong": bool(job["reason"]),
        }
        for name, job in list(found.items())[:JOBS_SHOWN_MAX]
    ]


def _pool(group: Mapping[str, Any]) -> dict[str, str]:
    turns = (
        f"{one['job']}, turn {one['epoch']}, from all-reduce {one['first']}"
        + ("" if one["until"] is None else f" to {one['until'] - 1}")
        for one in group["turns"]
    )
    jobs = (f"{name}: {job['turns']}" for name, job in group["jobs"].items())
    missing = group["missing"]
    return {
        "name": group["pool"],
        "has": "; ".join(turns) or "nobody",
        "wanted": group["wanted"] or "nobody",
        "round": group["phase"] + (f", waits for {_named(missing)}" if missing else ""),
        "jobs": _named(list(jobs)) or "none",
    }


def _move(move: TreeMove, now: float) -> dict[str, Any]:
    """``states``: each with the time that it took."""
    times = [at for _, at in move.phases]
    states = []
    for number, (phase, at) in enumerate(move.phases):
        is_last = number + 1 == len(times)
        if is_last and move.ended_at is not None:
            states.append(f"{phase}, {span(move.ended_at - move.at)} in all")
        else:
            states.append(f"{phase} {span((now if is_last else times[number + 1]) - at)}")
    return {
        "at": move.at,
        "job": move.job,
        "old": move.old,
        "new": move.new,
        "states": " → ".join(states) or "at once",
    }


def _named(names: Sequence[str]) -> str:
    more = len(names) - HOSTS_NAMED_MAX
    return ", ".join(names[:HOSTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """Span of time, for people: 12 ms, 3.5 s, 10 min, 1 h 5 min, 2 d 3 h."""
    if seconds < 0.9995:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    for name, length, part, parts in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86400, "h", 3600)):
        if seconds < {"min": 3600, "h": 86400}.get(name, float("inf")):
            rest = int(seconds % length // parts)
            return f"{int(seconds // length)} {name}" + (f" {rest} {part}" if rest else "")
    raise AssertionError("a day is the longest of them")
