"""What a host daemon remembers of the processes that were ranks."""

from __future__ import annotations

from inaproto.daemon.host.rank_processes import PROCESSES_MAX, RankProcesses
from inaproto.units import Instant


def test_whoever_is_there_is_forgotten_after_those_that_have_gone() -> None:
    """A rank may make and close communicators again and again, and is still in its job."""
    processes = RankProcesses()

    def known() -> list[str]:
        return [one["job"] for one in processes.status(Instant(0))]

    processes.add("train", 0, 0, Instant(0))
    for number in range(2 * PROCESSES_MAX):
        processes.add(f"train/{number}", 0, 0, Instant(0)).has_gone = True
    last = 2 * PROCESSES_MAX - 1
    assert (len(known()), known()[0], known()[-1]) == (PROCESSES_MAX, "train", f"train/{last}")
    for _ in range(PROCESSES_MAX):
        processes.add("other", 0, 0, Instant(0))
    assert known() == ["other"] * PROCESSES_MAX, "the oldest, where all are there"
