"""The page of a running controller: one document that needs nothing from elsewhere, and no scripts.

It says what the controller knows at that moment, and asks the browser to load it again. Everything that comes
from outside (names, reasons) is escaped; every table and picture has a limit, and says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from inaproto_controller.controller import Controller
from inaproto_controller.desired import Job, JobState
from inaproto_controller.graph_topology import GraphTopology
from inaproto_controller.live_page.timeline_picture import timeline
from inaproto_controller.live_page.topology_picture import ClusterLayout, colour_of
from inaproto_controller.looks import page_templates
from inaproto_controller.plan import BEHIND

JOBS_SHOWN_MAX: Final = 200
EVENTS_SHOWN_MAX: Final = 20
HOSTS_NAMED_MAX: Final = 8
NO_TREE: Final = "every tree that it could have needs slots that others have, or switches that do not report"
POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
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


class LivePage:
    def __init__(self, topology: GraphTopology) -> None:
        self._layout = ClusterLayout(topology)
        source = resources.files("inaproto_controller.live_page").joinpath("page.html.j2").read_text("utf-8")
        environment = page_templates()
        environment.filters["clock"] = _clock
        self._template = environment.from_string(source)

    def render(self, controller: Controller, asked: Asked) -> str:
        status, history = controller.status(), controller.history
        now = history.now()
        jobs = controller.jobs(live=False) if status["leads"] else []
        live = [job for job in jobs if job.state.is_live]
        over = [job for job in reversed(jobs) if not job.state.is_live]
        shown = [*live, *over][:JOBS_SHOWN_MAX]
        presences = {name: agent["presence"] for name, agent in status["agents"].items()}
        colours = {job.spec.name: colour_of(job.number) for job in [*reversed(over), *live]}
        return self._template.render(
            now=now,
            asked=asked,
            status=status,
            agents=_counted(presences),
            cluster=self._layout.picture(live, presences),
            jobs=[_row(job) for job in shown],
            jobs_left_out=len(jobs) - len(shown),
            states=[state.value for state in JobState],
            timeline=timeline(history.turns(now - asked.window_s), colours, now=now, window_s=asked.window_s),
            history=history,
            counts=history.status(),
            without_tree=[job.spec.name for job in live if _lacks_tree(job)][:EVENTS_SHOWN_MAX],
            no_tree=NO_TREE,
            fallbacks=list(history.fallbacks)[: -EVENTS_SHOWN_MAX - 1 : -1],
            moves=list(history.moves)[: -EVENTS_SHOWN_MAX - 1 : -1],
        )


def _lacks_tree(job: Job) -> bool:
    return job.tree is None and len(job.hosts) > 1


def _counted(presences: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for presence in presences.values():
        found[presence] = found.get(presence, 0) + 1
    return found


def _row(job: Job) -> dict[str, Any]:
    """Of the table of jobs."""
    return {
        "number": job.number,
        "name": job.spec.name,
        "colour": colour_of(job.number) if job.state.is_live and job.hosts else "",
        "state": job.state.value,
        "hosts": _named(job.hosts) if job.hosts else f"wants {job.spec.hosts}",
        "ranks": job.spec.hosts * job.spec.ranks_per_host,
        "tree": "" if job.tree is None else job.tree.root,
        "group": job.group,
        "why": job.why,
        "is_behind": job.why == BEHIND,
        "submitted_at": job.submitted_at,
    }


def _named(hosts: Sequence[str]) -> str:
    more = len(hosts) - HOSTS_NAMED_MAX
    return ", ".join(hosts[:HOSTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
