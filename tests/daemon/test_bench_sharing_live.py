"""The live part of ``inaproto bench sharing``: real daemons agree on turns, and no result differs."""

from __future__ import annotations

from inaproto.core.sharing.events import Mark
from inaproto_hil.bench.sharing_live import run_live


def test_jobs_share_and_are_counted() -> None:
    run = run_live(2, 1.0)
    assert run.differs == 0
    assert run.rounds[Mark.ROUND_BEGUN.value] > 0
    assert sum(run.paths.values()) > 0
