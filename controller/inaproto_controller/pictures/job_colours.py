"""Which of the page's colours a job has. The page's style says what these look like, by day and by night."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from zlib import crc32

from inaproto.client.ring_names import parse_ring_job
from inaproto_controller.cluster.desired import Job

COLOURS: Final = 8


def colour_of(job: int) -> int:
    """The same as long as the job lives."""
    return job % COLOURS


class JobColours:
    """``jobs``: that were submitted; of two with one name the later counts."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._known: Mapping[str, int] = {job.spec.name: colour_of(job.number) for job in jobs}

    def of(self, ring: str) -> int:
        """Colour of a job, or of a ring of it. A job that nobody submitted has one by its name."""
        name = parse_ring_job(ring).job
        known = self._known.get(name)
        return crc32(name.encode()) % COLOURS if known is None else known
