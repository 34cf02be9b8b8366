"""MLNet's evaluation: what is asked of it, and how its rows are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inaproto_hil.evaluation.mlnet.figures import FIGURES
from inaproto_hil.evaluation.mlnet.plots import drawing
from inaproto_hil.evaluation.mlnet.rows import NOT_REPRODUCED, OUTSIDE, REPORTED
from inaproto_hil.evaluation.mlnet.runs import Found, PhaseFound, PhaseRun, Run, perform, warm_up
from inaproto_hil.evaluation.paper import Fields, Paper, drawn_fields, says, shows, shows_printed
from inaproto_hil.evaluation.rows import Row


def _slowest(outcomes: Mapping[Run, Found]) -> Fields | None:
    """The exact phase that took longest to compute."""
    found = [
        (one.seconds, run, one)
        for run, one in outcomes.items()
        if isinstance(run, PhaseRun) and isinstance(one, PhaseFound) and not run.is_stored and one.rated
    ]
    if not found:
        return None
    seconds, run, one = max(found, key=lambda each: each[0])
    return {
        "scheme": run.scheme.value,
        "servers": run.servers,
        "oversubscription": run.oversubscription,
        "rated": one.rated,
        "cpu_s": seconds,
    }


def _closing(report: Fields) -> str | None:
    slowest = report["slowest_phase"]
    if slowest is None:
        return None
    return (
        f"slowest phase of 1,024 servers: {slowest['cpu_s']:.1f} s of CPU, exact"
        f" ({slowest['scheme']}, P = {slowest['servers']}, 1:{slowest['oversubscription']:g})"
    )


def _fields(row: Row) -> dict[str, Any]:
    fields = drawn_fields(row, "least", "most", "why")
    return {**fields, "verdict": _verdict(row, fields["why"])}


def _verdict(row: Row, why: str | None) -> str:
    if row.is_inside is None:
        return REPORTED
    if not row.is_inside:
        return OUTSIDE if why is None else NOT_REPRODUCED
    return "within tolerance" if (row.below or 0) > 1e-6 or (row.above or 0) > 1e-6 else "exact"


PAPER: Final = Paper[Run, Found](
    name="mlnet",
    source="L. Mai et al., Optimizing Network Performance in Distributed Machine Learning",
    drawn="seeds",
    figures=FIGURES,
    perform=perform,
    warm_up=warm_up,
    length=lambda run: run.servers if isinstance(run, PhaseRun) else 0,
    fields=_fields,
    columns={
        "paper": shows_printed("paper"),
        "ours": shows("ours"),
        "±95 %": shows("confidence_95"),
        "least": shows("least"),
        "most": shows("most"),
        "verdict": says("verdict"),
        "why": says("why"),
    },
    drawing=drawing,
    excuses=True,
    more=lambda outcomes: {"slowest_phase": _slowest(outcomes)},
    closing=_closing,
    without_numba="hundred",
)
