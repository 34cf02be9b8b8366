"""Follows the act ``racks``: plays its scenario on the fabric, and notes what the daemons say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from examples.digits.display import Display
from examples.digits.scenario import CutLink, End, GiveUp, Job, MendLink, Order, Reboot, Scenario, Seen
from examples.digits.watch import Watch, WireSample
from inaproto.daemon.observe.status_tables import fallback_note, recovery_note
from inaproto_hil.rigs.cluster import Child, ClusterError
from inaproto_hil.rigs.fabric_cluster import SPINE, FabricCluster

LOOK_INTERVAL_S = 0.1
WIRE_INTERVAL_S = 1.0
EPOCHS_AHEAD = 2
"""How many epochs the workers are told before they need them, so that none waits."""

CUT, MENDED, REBOOT, HALTED, FALLBACK, RETURNED = "cut", "mended", "reboot", "halted", "fallback", "returned"


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to the racks, or what they say that followed."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PathSample:
    """How the job was summed from then on."""

    at_s: float
    phase: str
    path: str

    @property
    def now(self) -> str:
        """``switch`` or ``chain``; ``halted`` while the job has no ring."""
        return self.path if self.phase == "running" else HALTED


@dataclass(slots=True)
class Tally:
    """Counters of daemons, added up; those of one that starts anew go on from where the last ended."""

    _last: dict[str, dict[str, int]] = field(default_factory=dict)
    _before: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, source: str, counts: Mapping[str, int]) -> None:
        """What ``source`` counts now; if something became less, it is another life of it."""
        last = self._last.get(source, {})
        if any(counts.get(name, 0) < count for name, count in last.items()):
            self._before.setdefault(source, Counter()).update(last)
        self._last[source] = dict(counts)

    def of(self, source: str, name: str) -> int:
        return self._last.get(source, {}).get(name, 0) + self._before.get(source, Counter())[name]

    def total(self, name: str) -> int:
        return sum(self.of(source, name) for source in self._last)


class RacksWatch(Watch):
    """``workers`` are told their epochs; set it when all are started."""

    def __init__(
        self,
        cluster: FabricCluster,
        display: Display,
        scenario: Scenario,
        *,
        link: str,
        leaf: str,
        epochs_min: int,
        idle_timeout_s: float,
    ) -> None:
        super().__init__(cluster, display, idle_timeout_s=idle_timeout_s, interval_s=LOOK_INTERVAL_S)
        self.workers: list[Child] = []
        self.events: list[Event] = []
        self.paths: list[PathSample] = []
        self.wire: list[WireSample] = []
        self.sums: list[dict[str, int]] = []
        """Packets that each switch took into sums, one record with each of ``wire``."""
        self.job: Job | None = None
        """The job as it was seen last."""
        self.plan = ""
        self.rendezvous: dict[str, int] = {}
        """Counters of the control plane at the root."""
        self.epochs = 0
        """How many epochs the workers were told."""
        self._cluster = cluster
        self._scenario = scenario
        self._link, self._leaf = link, leaf
        self._epochs_min = epochs_min
        self._step = self._epoch = 0
        self._stepped_s = 0.0
        self._may_end = self._said_end = False
        self._next_wire_s = 0.0
        self._tally = Tally()

    # --- the daemons

    def look(self) -> None:
        root = self._cluster.switch_status()
        self.rendezvous = root["rendezvous"]
        job = Job.of(root)
        if job is not None:
            said = root["jobs"][0]
            self.plan = said["plan"] or self.plan
            self._note(job, said)
        for order in self._scenario.look(Seen(self.at_s, self._step, self._stepped_s, job)):
            self._perform(order)
        if self.at_s >= self._next_wire_s:
            self.sample()
        self._tell()

    def sample(self) -> None:
        """Ask all daemons for their counters, but those that are still starting."""
        cluster, tally = self._cluster, self._tally
        for switch in cluster.config.switches:
            if not cluster.is_ready(cluster.switch(switch)):
                continue
            status = cluster.switch_status(switch)
            aggregated = status["accelerator"]["counters"]["aggregated_in"]
            tally.add(switch, {**status["totals"], "aggregated": aggregated})
        for index, host in enumerate(cluster.hosts):
            tally.add(host.name, {"retransmits": cluster.host_status(index)["nic"].get("retransmits", 0)})
        self.wire.append(
            WireSample(
                at_s=self.at_s,
                frames=tally.total("frames_in") + tally.total("frames_out"),
                frames_lost=tally.total("frames_lost"),
                duplicated=tally.total("frames_duplicated"),
                reordered=tally.total("frames_reordered"),
                retransmits=tally.total("retransmits"),
                retransmits_by_host={host.name: tally.of(host.name, "retransmits") for host in cluster.hosts},
            )
        )
        self.sums.append({switch: tally.of(switch, "aggregated") for switch in cluster.config.switches})
        self._next_wire_s = self.at_s + WIRE_INTERVAL_S

    def _note(self, job: Job, said: Mapping[str, Any]) -> None:
        """What the root says now and did not say before, in the words of ``inaproto status``."""
        before, self.job = self.job, job
        if before is None or (before.phase, before.path) != (job.phase, job.path):
            self.paths.append(PathSample(self.at_s, job.phase, job.path))
        if before is None:
            return
        if job.recoveries > before.recoveries:
            self._event(HALTED, recovery_note(said))
        if job.fallback and job.fallback != before.fallback:
            self._event(FALLBACK, fallback_note(said))
        if before.fallback and not job.fallback:
            self._event(RETURNED, f"{job.name} is summed in the switches again")
            self.sample()

    def _event(self, kind: str, text: str) -> None:
        self.events.append(Event(self.at_s, kind, text))
        self.display.note(text)

    # --- the scenario

    def _perform(self, order: Order) -> None:
        link = self._cluster.links[self._link]
        match order:
            case CutLink():
                self._event(CUT, f"the link between {self._link} and {SPINE} is cut")
                link.cut()
            case MendLink():
                self._event(MENDED, f"the link between {self._link} and {SPINE} is mended")
                link.mend()
            case Reboot(with_memory):
                memory = "its memory" if with_memory else "no memory for sums"
                self.sample()
                self._event(REBOOT, f"{self._leaf} is killed (SIGKILL) and started again, with {memory}")
                self._cluster.reboot(self._leaf, *(() if with_memory else ("--memory-kib", "0")))
            case End():
                self._may_end = True
            case GiveUp(reason):
                raise self._cluster.failure(reason)

    # --- the workers

    def stepped(self, step: dict[str, Any]) -> None:
        self._step, self._epoch = step["step"], step["epoch"]
        self._stepped_s = step["ended_s"] - self.start_s
        path = "" if self.job is None else "hosts" if self.job.path == "chain" else "switches"
        self.show(step, self.wire[-1] if self.wire else None, path)
        self._tell()

    def _tell(self) -> None:
        """All workers are told the same, so that all train equally long."""
        while not self._said_end and self.epochs < self._epoch + EPOCHS_AHEAD:
            self._said_end = self._may_end and self.epochs >= self._epochs_min
            self.epochs += not self._said_end
            for worker in self.workers:
                self._say(worker, "end" if self._said_end else "epoch")

    def _say(self, worker: Child, word: str) -> None:
        try:
            worker.send_line(word)
        except ClusterError as error:
            self._cluster.check()
            raise self._cluster.failure(str(error)) from None
