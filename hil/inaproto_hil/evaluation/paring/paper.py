"""PARING's evaluation: what is asked of it, and how its rows are told."""

from __future__ import annotations

from typing import Any, Final

from inaproto_hil.evaluation.paper import Paper, drawn_fields, says, shows, shows_printed
from inaproto_hil.evaluation.paring.figures import FIGURES
from inaproto_hil.evaluation.paring.plots import drawing
from inaproto_hil.evaluation.paring.runs import Found, PlanRun, Run, perform, warm_up
from inaproto_hil.evaluation.rows import NOT_REPRODUCIBLE, Row


def _fields(row: Row) -> dict[str, Any]:
    fields = drawn_fields(row, "least", "most", "two_pods", "why", "verdict")
    return {**fields, "verdict": fields["verdict"] or _verdict(row, fields["why"])}


def _verdict(row: Row, why: str | None) -> str:
    if row.is_inside is None:
        return NOT_REPRODUCIBLE if why is not None else "to compare"
    if not row.is_inside:
        return "outside"
    return "within tolerance" if row.below or row.above else "exact"


PAPER: Final = Paper[Run, Found](
    name="paring",
    source="Y. Qiu et al., PARING: Joint Task Placement and Routing for Distributed Training "
    "With In-Network Aggregation",
    drawn="draws",
    figures=FIGURES,
    perform=perform,
    warm_up=warm_up,
    length=lambda run: not isinstance(run, PlanRun),
    fields=_fields,
    columns={
        "paper": shows_printed("paper"),
        "ours": shows("ours"),
        "±95 %": shows("confidence_95"),
        "least": shows("least"),
        "most": shows("most"),
        "two pods": shows("two_pods"),
        "verdict": says("verdict"),
        "why": says("why"),
    },
    drawing=drawing,
)
