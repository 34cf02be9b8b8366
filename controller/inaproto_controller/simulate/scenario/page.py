"""The report as one HTML page that needs nothing from elsewhere, rendered from the JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

from markupsafe import Markup

from inaproto_controller.pictures.looks import page_templates
from inaproto_controller.simulate.scenario.measures import BY_KEY, MEASURES
from inaproto_controller.simulate.scenario.pictures import pictures
from inaproto_controller.simulate.scenario.table import cell

_JOBS_SHOWN: Final = 10
_ROUNDING: Final = 1e-9
"""Rounding of a job's time, relative: less was not saved, but lost in adding up (-0.0 %)."""


def page(found: Mapping[str, Any]) -> str:
    source = (
        resources.files("inaproto_controller.simulate.scenario").joinpath("page.html.j2").read_text("utf-8")
    )
    return (
        page_templates()
        .from_string(source)
        .render(
            found=found,
            measures=MEASURES,
            saved_share=BY_KEY["saved_share"],
            saved=BY_KEY["saved_s_mean"],
            cell=cell,
            best=_best,
            pictures={name: Markup(drawing) for name, drawing in pictures(found).items()},
            jobs=[_jobs(variant) for variant in found["variants"]],
        )
    )


def _best(key: str, variant: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> bool:
    """Whether its mean is the best, and not that of all."""
    less_is_better = BY_KEY[key].less_is_better
    means = [one["measures"][key]["mean"] for one in variants]
    mine, defined = variant["measures"][key]["mean"], [mean for mean in means if mean is not None]
    if less_is_better is None or mine is None or len(set(defined)) < 2:
        return False
    return bool(mine == (min(defined) if less_is_better else max(defined)))


def _jobs(variant: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Jobs of the first seed: the slowest, and those that INA gained most and least."""
    jobs = [_row(job) for job in variant["jobs"] or ()]
    could = [job for job in jobs if job["possible"] is not None]
    return {
        "waited for longest": sorted(jobs, key=lambda job: -job["waited"])[:_JOBS_SHOWN],
        "gained most": sorted(could, key=lambda job: -job["saved"])[:_JOBS_SHOWN],
        "got the smallest part of what they could gain": sorted(could, key=lambda job: job["got"])[
            :_JOBS_SHOWN
        ],
    }


def _row(job: Mapping[str, Any]) -> dict[str, Any]:
    jct = job["finish_s"] - job["start_s"]
    saved, possible = job["plain_s"] - jct, job["plain_s"] - job["all_ina_s"]
    saved, possible = (0.0 if abs(gain) < _ROUNDING * job["plain_s"] else gain for gain in (saved, possible))
    return {
        **job,
        "jct": jct,
        "queued": job["start_s"] - job["arrival_s"],
        "waited": job["finish_s"] - job["arrival_s"],
        "saved": saved,
        "possible": possible if possible > 0 else None,
        "got": saved / possible if possible > 0 else None,
    }
