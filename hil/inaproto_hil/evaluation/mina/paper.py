"""MINA's evaluation: what is asked of it, and how its rows are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from inaproto_controller.cluster.model import CLUSTER, EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_hil.evaluation.mina.figures import FIGURES, length
from inaproto_hil.evaluation.mina.plots import drawing
from inaproto_hil.evaluation.mina.runs import Found, Run, perform, warm_up
from inaproto_hil.evaluation.paper import Fields, Paper, number, shows, shows_printed
from inaproto_hil.evaluation.rows import Row


def _step_gains() -> dict[str, dict[str, Any]]:
    return {
        name: {model: StepTimes(measured(model), speeds, hosts=2).gain for model in EVALUATED}
        for name, speeds in (("cluster", CLUSTER), ("sharing", SHARING))
    }


def _beside(row: Row) -> Fields:
    return {"beside": None if row.beside is None else asdict(row.beside)}


def _aside(name: str, say: Callable[[float], str]) -> Callable[[Fields], str]:
    """A column of what stands beside a score."""

    def cell(row: Fields) -> str:
        value = (row["beside"] or {}).get(name)
        return "-" if value is None else say(value)

    return cell


def _seconds(value: float) -> str:
    return f"{value:.4f} s" if abs(value) < 1 else f"{value:.1f} s"


def _swaps(row: Fields) -> str:
    beside = row["beside"] or {}
    return "-" if beside.get("jct_s") is None else f"{beside['swaps_per_job']:.1f}"


PAPER: Final = Paper[Run, Found](
    name="mina",
    source="S. Dong et al., MINA: Fine-grained In-network Aggregation Resource Scheduling "
    "for Machine Learning Service",
    drawn="seeds",
    figures=FIGURES,
    perform=perform,
    warm_up=warm_up,
    length=length,
    fields=_beside,
    columns={
        "paper": shows_printed("paper"),
        "ours": shows("ours"),
        "±95 %": shows("confidence_95"),
        "inside": lambda row: {None: "-", True: "yes", False: "NO"}[row["inside"]],
        "saves": _aside("saved_s", _seconds),
        "of JCT": _aside("saved_share", lambda share: f"{100 * share:.3f} %"),
        "waits": _aside("queued_s", _seconds),
        "swaps/job": _swaps,
        "exclusive": _aside("exclusive_score", number),
    },
    drawing=drawing,
    has_curves=False,
    more=lambda outcomes: {"step_gains": _step_gains()},
    without_numba="fifty",
)
