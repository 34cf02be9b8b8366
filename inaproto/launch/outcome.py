"""Which path a job was summed by, and what went otherwise than was hoped, as daemons say while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from inaproto.core.rendezvous.recovery import ASKED

REASONS_MAX: Final = 16


class Observed:
    """What the daemons have said; fed with their statuses, before, during and after the job."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Counter[str]]] = {}
        self._latest: dict[str, dict[str, Counter[str]]] = {}
        self._reasons: dict[str, None] = {}
        self._recoveries: dict[str, tuple[int, int]] = {}
        self._jobs: dict[str, tuple[int, int]] = {}

    def take(self, hosts: Iterable[Mapping[str, Any]], switches: Iterable[Mapping[str, Any]]) -> None:
        """``hosts`` and ``switches`` are statuses, as ``inaproto status --json`` has them."""
        for host in hosts:
            totals = host.get("totals", {})
            counts = {
                name: Counter(dict(totals.get(f"{name}_by_path", {}))) for name in ("operations", "bytes")
            }
            who = f"{host.get('name')} {host.get('pid')}"
            self._before.setdefault(who, counts)
            self._latest[who] = counts
            for name, found in (("recoveries", self._recoveries), ("jobs", self._jobs)):
                latest = int(totals.get(name, 0))
                first, _ = found.get(who, (latest, 0))
                found[who] = (first, latest)
            for ring in host.get("rings", ()):
                for reason in ring.get("halted_because", ()):
                    self._note(f"job {ring.get('job')!r}: {reason}")
        for switch in switches:
            for job in switch.get("jobs", ()):
                if job.get("fallback") not in (None, "", ASKED):
                    self._note(f"job {job.get('name')!r}: {job['fallback']}")

    def _note(self, reason: str) -> None:
        if len(self._reasons) < REASONS_MAX:
            self._reasons[reason] = None

    def _counted(self, name: str) -> Counter[str]:
        """By path, on the host that had most: each host counts every all-reduce of its jobs."""
        found: Counter[str] = Counter()
        for who, latest in self._latest.items():
            found |= latest[name] - self._before[who][name]
        return found

    @property
    def is_empty(self) -> bool:
        """No daemon has summed anything."""
        return not self._counted("operations")

    @property
    def has_joined(self) -> bool:
        """Ranks came to a daemon; of those of one host that add in place, it counts no all-reduce."""
        return any(latest > first for first, latest in self._jobs.values())

    @property
    def is_sent(self) -> bool:
        """Something was summed over several hosts."""
        return any(path != "local" for path in self._counted("operations"))

    @property
    def recoveries(self) -> int:
        """Times that a ring ended in the middle of its job, on the host that saw most."""
        return max((last - first for first, last in self._recoveries.values()), default=0)

    @property
    def reasons(self) -> list[str]:
        """Why an all-reduce went otherwise than asked, or a ring ended, each once."""
        return list(self._reasons)

    def as_dict(self) -> dict[str, Any]:
        return {
            "operations_by_path": dict(self._counted("operations")),
            "bytes_by_path": dict(self._counted("bytes")),
            "recoveries": self.recoveries,
            "reasons": self.reasons,
        }

    def sentence(self) -> str:
        """One line for the end of a run."""
        operations, nbytes = self._counted("operations"), self._counted("bytes")
        if not operations:
            return _AMONG_THEMSELVES if self.has_joined else _NONE
        ways = ", ".join(
            f"{count} {_WAYS.get(path, path)} ({_size(nbytes[path])})"
            for path, count in operations.most_common()
        )
        called = operations.total()
        return f"{called} all-reduce{'' if called == 1 else 's'}: {ways}"


_NONE: Final = (
    "no all-reduce went by a host daemon (ranks of one host that add in place do so among themselves)"
)
_AMONG_THEMSELVES: Final = (
    "no all-reduce went by a host daemon, which ranks have joined: those of one host that add in place do so "
    "among themselves"
)
_WAYS: Final = {
    "switch": "in the switch",
    "local": "on this host alone, by its ranks and daemon",
    "chain": "along the chain of hosts",
    "overlay": "up the tree of hosts",
    "ring": "along the ring of hosts",
}


def _size(nbytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.3g} {unit}"
    return f"{nbytes} bytes"
