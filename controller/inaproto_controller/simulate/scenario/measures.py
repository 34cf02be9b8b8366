"""What is said of each variant: MINA's section V-A, and what its section V leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from inaproto_controller.simulate.results import Result


@dataclass(frozen=True, slots=True)
class Measure:
    key: str
    """In JSON."""
    label: str
    meaning: str
    of: Callable[[Result], float | None]
    unit: str = ""
    """s, %, or none."""
    digits: int = 3
    """Behind the point; of per cent, of that."""
    less_is_better: bool | None = None
    """None: neither is."""
    why_undefined: str = ""

    def show(self, value: float | None) -> str:
        if value is None:
            return "undefined"
        if self.unit == "%":
            return f"{100 * value:z.{self.digits}f} %"
        return f"{value:z,.{self.digits}f}" + (f" {self.unit}" if self.unit else "")

    def show_half_width(self, value: float) -> str:
        return f"{value * (100 if self.unit == '%' else 1):.{self.digits}f}"


def _per_job(total: float, result: Result) -> float | None:
    return total / len(result.jobs) if result.jobs else None


_NOTHING_TO_GAIN: Final = "no job could be any faster with INA, or those that could lost a host"
_NO_JOB: Final = "no job was placed"
_NONE_LEFT: Final = "no job was placed, or all that were lost a host"

MEASURES: Final = (
    Measure(
        "score",
        "INA score",
        "Of the time that INA could save all jobs if each had it for itself, the share that it saved. "
        "1 is all of it, 0 nothing; below 0 the jobs are slower than without INA.",
        lambda result: result.score,
        less_is_better=False,
        why_undefined=_NOTHING_TO_GAIN,
    ),
    Measure(
        "weighted_score",
        "score, weighted",
        "The same, each job's time multiplied with its hosts: of host time.",
        lambda result: result.weighted_score,
        less_is_better=False,
        why_undefined=_NOTHING_TO_GAIN,
    ),
    Measure(
        "saved_s_mean",
        "saved per job",
        "Seconds by which INA shortens the mean job, against the same job without INA.",
        lambda result: result.saved_mean,
        unit="s",
        less_is_better=False,
        why_undefined=_NONE_LEFT,
    ),
    Measure(
        "saved_share",
        "saved, share",
        "The same as a share of what the jobs take without INA.",
        lambda result: result.saved_share,
        unit="%",
        digits=2,
        less_is_better=False,
        why_undefined=_NONE_LEFT,
    ),
    Measure(
        "jct_s_mean",
        "job time (JCT)",
        "Job completion time: from getting hosts to the end of the last step.",
        lambda result: result.seconds_mean,
        unit="s",
        less_is_better=True,
        why_undefined=_NO_JOB,
    ),
    Measure(
        "queued_s_mean",
        "queueing",
        "From arrival to getting hosts. First in, first out: who does not fit holds back those behind.",
        lambda result: result.queued_mean,
        unit="s",
        less_is_better=True,
        why_undefined=_NO_JOB,
    ),
    Measure(
        "jct_with_queue_s_mean",
        "JCT with queueing",
        "From arrival to the end: what a user waits.",
        lambda result: result.seconds_with_queue_mean,
        unit="s",
        less_is_better=True,
        why_undefined=_NO_JOB,
    ),
    Measure(
        "migrations_per_job",
        "migrations per job",
        "Changes of a job's aggregation tree after its first.",
        lambda result: _per_job(result.migrations, result),
        digits=2,
        less_is_better=True,
        why_undefined=_NO_JOB,
    ),
    Measure(
        "downtime_s_per_job",
        "downtime per job",
        "Charged for them: seconds in which a job may not use INA. It goes on without.",
        lambda result: _per_job(result.downtime, result),
        unit="s",
        less_is_better=True,
        why_undefined=_NO_JOB,
    ),
    Measure(
        "fairness",
        "fairness",
        "Jain's index of the shares that jobs get of what they could gain: 1 if all alike, 1/n if one of n "
        "has it all.",
        lambda result: result.fairness,
        less_is_better=False,
        why_undefined="no job gained anything",
    ),
    Measure(
        "utilisation",
        "INA utilisation",
        "Share of the jobs' time that is operations with INA.",
        lambda result: result.utilisation,
        unit="%",
        digits=2,
        why_undefined="no job took any time",
    ),
    Measure(
        "switch_utilisation",
        "switch utilisation",
        "Share of all switches' time in which they sum.",
        lambda result: result.switch_utilisation,
        unit="%",
        digits=2,
        why_undefined="nothing happened",
    ),
    Measure(
        "cluster_utilisation",
        "hosts busy",
        "Share of all hosts' time in which they have a job: more if jobs take longer, too.",
        lambda result: result.cluster_utilisation,
        unit="%",
        digits=2,
        why_undefined="nothing happened",
    ),
    Measure(
        "end_s",
        "all done after",
        "When the last job has ended.",
        lambda result: result.end,
        unit="s",
        digits=1,
        less_is_better=True,
    ),
)
BY_KEY: Final = {measure.key: measure for measure in MEASURES}


def measured_of(result: Result) -> dict[str, Any]:
    """Measures by key."""
    return {measure.key: measure.of(result) for measure in MEASURES}
