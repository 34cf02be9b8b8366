"""How far heuristics are from the best there is, on instances small enough to know it."""

from inaproto_hil.evaluation.yardsticks.comparison import Instances, Report, report

__all__ = ["Instances", "Report", "report"]
