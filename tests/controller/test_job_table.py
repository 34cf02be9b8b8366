"""``inaproto job list`` for people: what a training process said when it gave up is shown as it was said."""

from __future__ import annotations

from rich.console import Console

from inaproto_controller.service.job_command import jobs_table


def test_what_a_process_said_is_no_markup() -> None:
    why = "host h0: process 7 has given up: cannot read [/data/set1], part [0]"
    job = {
        "number": 1,
        "name": "train",
        "state": "failed",
        "hosts_wanted": 2,
        "ranks_per_host": 4,
        "tree": None,
        "why": why,
    }
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(jobs_table([job]))
    lines = capture.get().splitlines()
    assert lines[1].split(maxsplit=6) == ["1", "train", "failed", "2", "8", "-", why]
