"""Faults of who starts processes: whose rank is believed, what follows an end, whose status is returned."""

from __future__ import annotations

from typing import Final

from inaproto.client import environment
from inaproto.launch.labelled_lines import LabelledLines
from inaproto.launch.outcome import Observed
from inaproto.launch.supervision import Supervision
from tests.planted.planting import PlantedFault, fault

RANKS: Final = "docs/launching.md; inaproto.client.environment"
RUN: Final = "docs/launching.md; inaproto.launch"
ENVIRONMENT: Final = "tests/unit/test_environment.py"
TESTS: Final = "tests/unit/test_launch.py"
SUPERVISION: Final = "tests/unit/test_supervision.py"

LAUNCH_FAULTS: Final[tuple[PlantedFault, ...]] = (
    fault(
        "outermost_launcher_believed",
        RANKS,
        "takes the rank of the launcher that started the one that started the process",
        environment._launcher,
        "return complete[0]",
        "return complete[-1]",
        test=f"{ENVIRONMENT}::test_a_launcher_within_another_numbers_the_processes",
    ),
    fault(
        "batch_script_is_rank_0",
        RANKS,
        "takes the script of a batch job for rank 0 of it",
        environment._launcher,
        'and not environment.get("SLURM_STEP_ID")',
        "and not environment",
        test=f"{ENVIRONMENT}::test_the_script_of_a_batch_job_is_no_rank",
    ),
    fault(
        "sigterm_and_no_more",
        RUN,
        "asks ranks to end, and waits for them for ever",
        Supervision.ended,
        "[signal.SIGTERM, signal.SIGKILL]",
        "[signal.SIGTERM]",
        test=f"{SUPERVISION}::test_a_rank_that_ends_badly_ends_the_others_and_is_named",
    ),
    fault(
        "status_of_the_last",
        RUN,
        "returns the status of the rank that ended last, which the launcher itself ended",
        Supervision.ended,
        "        elif not self._is_ending:\n",
        "        else:\n            self._failures.clear()\n",
        test=f"{SUPERVISION}::test_a_rank_that_ends_badly_ends_the_others_and_is_named",
    ),
    fault(
        "first_end_is_first_failure",
        RUN,
        "blames the rank whose process ended first, which another rank's loss had ended",
        Supervision._is_awaited,
        "if not self.running.intersection(self._by_themselves):",
        "if self.running:",
        test=f"{SUPERVISION}::test_the_first_to_fail_is_named_and_not_the_first_to_end",
    ),
    fault(
        "killed_at_the_first_ctrl_c",
        RUN,
        "kills ranks that were interrupted before they can save what they have",
        Supervision.signalled,
        "[number, signal.SIGTERM, signal.SIGKILL]",
        "[signal.SIGKILL]",
        test=f"{SUPERVISION}::test_ctrl_c_is_asked_for_then_ordered_then_done",
    ),
    fault(
        "label_in_the_line",
        RUN,
        "puts a label before each piece that is read of a process, not before each line",
        LabelledLines.feed,
        "    self._rest = self._rest[begin:]\n",
        '    out.append(self._label + self._rest[begin:])\n    self._rest = b""\n',
        test=f"{TESTS}::test_lines_get_a_label_when_they_are_whole",
    ),
    fault(
        "counted_since_the_daemon_began",
        RUN,
        "counts the all-reduces of the jobs before this one, too",
        Observed._counted,
        " - self._before[who][name]",
        "",
        test=f"{TESTS}::test_the_outcome_is_what_came_since_the_first_answer",
    ),
)
