"""What daemons have told of one job, found in their statuses (``inaproto status --json``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inaproto.client.ring_names import parse_ring_job
from inaproto.daemon.observe.shapes import Each, Maybe, Whole, misfit
from inaproto.errors import ConfigError

Status = Mapping[str, Any]
_ROW: Final = {
    "path": str,
    "size": Whole(-1),
    "operations": Whole(1),
    "bytes": Whole(),
    "called_s": float,
    "busy_s": float,
    "busy_s_squared": float,
}
_RECORD: Final = {
    "job": str,
    "run": Whole(),
    "size": Whole(),
    "ranks": Whole(),
    "hosts": Whole(high=1 << 16),
    "ended": bool,
    "began_s_ago": float,
    "last_s_ago": Maybe(float),
    "recoveries": Whole(),
    "paths": [_ROW],
    "redone": [{"code": str, "reason": str, "times": Whole()}],
}
_WITH_TOTALS: Final = {
    "mtu": Whole(256, 1 << 16),
    "message_packets": Whole(1, 1 << 16),
    "totals": {"bytes_by_path": Each(Whole())},
    "job_totals": {"jobs": [_RECORD], "forgotten": [_ROW]},
}
_WAYS: Final = {
    "job": str,
    "run": Whole(),
    "ways": [{"path": str, "reason": str, "times": Whole(), "lasted_s": float}],
    "ring_ends": [{"reason": str, "times": Whole()}],
}
_SWITCH: Final = {
    "dir": str,
    "accelerator": {"counters": {"results_out": Whole()}},
    "host_links?": {"measured?": [{"hosts": [str], "rate_bps": Whole(1), "latency_ns": Whole()}]},
    "job_ways?": [_WAYS],
}
_DOCUMENT: Final = {
    "hosts": [{"name": str}],
    "switch": Maybe(_SWITCH),
    "other_switches": [Maybe(_SWITCH)],
}
FAST: Final = ("switch", "sharp")
"""Paths by which the network sums; by the others hosts do."""
PATHS: Final = (*FAST, "chain", "overlay", "ring", "local")


def place_of(path: str) -> tuple[int, str]:
    """Its place among the paths; one that only a later release knows comes last."""
    return PATHS.index(path) if path in PATHS else len(PATHS), path


def misfit_of(document: object) -> str:
    """Why it is nothing that ``inaproto status --json`` writes; empty: it is."""
    wrong = misfit(document, _DOCUMENT)
    if wrong:
        return wrong
    assert isinstance(document, dict), "it fits"
    told = ((number, host) for number, host in enumerate(document["hosts"]) if "job_totals" in host)
    found = (misfit(host, _WITH_TOTALS, f"it.hosts[{number}]") for number, host in told)
    return next((why for why in found if why), "")


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
            wrong = misfit_of(one)
            if wrong:
                raise ConfigError(f"is not what inaproto status --json writes: {wrong}")
            for host in one["hosts"]:
                hosts[host["name"]] = host
            for switch in [one["switch"], *one["other_switches"]]:
                if switch is not None:
                    switches[switch["dir"]] = switch
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
