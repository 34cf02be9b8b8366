"""What daemons have told of one job, found in their statuses (``inaproto status --json``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inaproto.client.ring_names import parse_ring_job
from inaproto.errors import ConfigError

Status = Mapping[str, Any]
FAST: Final = ("switch", "sharp")
"""Paths by which the network sums; by the others hosts do."""
PATHS: Final = (*FAST, "chain", "overlay", "ring", "local")


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What one host daemon has had summed for a ring of the job."""

    host: str
    record: Status

    @property
    def rows(self) -> Sequence[Status]:
        """Counts by path and size."""
        found: Sequence[Status] = self.record["paths"]
        return found

    @property
    def operations(self) -> int:
        return sum(row["operations"] for row in self.rows)

    def by_path(self, what: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in self.rows:
            found[row["path"]] = found.get(row["path"], 0) + row[what]
        return found


@dataclass(frozen=True, slots=True)
class Ring:
    """The job, or one of its parallel rings, in one life."""

    name: str
    run: int
    hosts: tuple[HostRecord, ...]
    ways: Status | None
    """What the switch knows of it, at which its hosts meet; None: it was not asked, or has forgotten it."""
    runs: tuple[int, ...]
    """All lives that are known, the newest last."""

    @property
    def first(self) -> HostRecord:
        """The host that knows of most all-reduces: all hosts of a job end the same ones."""
        return max(self.hosts, key=lambda one: one.operations)

    @property
    def size(self) -> int:
        """Hosts of the job."""
        return int(max(one.record["hosts"] for one in self.hosts))


@dataclass(frozen=True, slots=True)
class Statuses:
    hosts: tuple[Status, ...]
    switches: tuple[Status, ...]

    @classmethod
    def of(cls, told: Iterable[Status]) -> Statuses:
        """Of documents of ``inaproto status --json``; where two are of one daemon, the later one counts.

        Raises ``ConfigError`` for what is no such document.
        """
        hosts: dict[str, Status] = {}
        switches: dict[str, Status] = {}
        for one in told:
            try:
                for host in one["hosts"]:
                    hosts[host["name"]] = host
                for switch in [one["switch"], *one["other_switches"]]:
                    if switch is not None:
                        switches[switch["dir"]] = switch
            except (KeyError, TypeError):
                raise ConfigError("a file of --from is not what inaproto status --json writes") from None
        return cls(tuple(hosts.values()), tuple(switches.values()))

    def jobs(self) -> list[str]:
        """Names of all jobs that any host has had, each once."""
        names = (parse_ring_job(one["job"]).job for host in self.hosts for one in records_of(host))
        return list(dict.fromkeys(names))

    def rings(self, job: str, run: int | None = None) -> list[Ring]:
        """Of ``job``, in its newest life, or in ``run``; several if it has parallel rings."""
        by_ring: dict[str, list[HostRecord]] = {}
        for host in self.hosts:
            for one in records_of(host):
                if job in (one["job"], parse_ring_job(one["job"]).job):
                    by_ring.setdefault(one["job"], []).append(HostRecord(host["name"], one))
        found = (self._ring(name, told, run) for name, told in sorted(by_ring.items()))
        return [ring for ring in found if ring is not None]

    def _ring(self, name: str, told: Sequence[HostRecord], run: int | None) -> Ring | None:
        ages: dict[int, float] = {}
        for one in told:
            ages[one.record["run"]] = one.record["began_s_ago"]
        runs = tuple(sorted(ages, key=lambda each: -ages[each]))
        chosen = runs[-1] if run is None else run
        hosts = tuple(one for one in told if one.record["run"] == chosen)
        return Ring(name, chosen, hosts, self._ways(name, chosen), runs) if hosts else None

    def _ways(self, name: str, run: int) -> Status | None:
        for switch in self.switches:
            for ways in switch.get("job_ways", ()):
                if (ways["job"], ways["run"]) == (name, run):
                    found: Status = ways
                    return found
        return None


def records_of(host: Status) -> Sequence[Status]:
    """Of an older daemon none."""
    found: Sequence[Status] = host.get("job_totals", {}).get("jobs", ())
    return found
