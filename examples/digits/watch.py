"""Follows a running demo: the workers' lines, the daemons' counters, and whether all is still alive."""

from __future__ import annotations

import json
import queue
import statistics
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.digits.display import Display, State
from inaproto_hil.rigs.cluster import Child, Cluster, LocalCluster

SAMPLE_INTERVAL_S = 1.0
RECENT_STEPS = 20


@dataclass(frozen=True, slots=True)
class WireSample:
    """Totals since the daemons started."""

    at_s: float
    frames: int
    """Frames that the switch's ports received and sent."""
    frames_lost: int
    duplicated: int
    reordered: int
    retransmits: int
    """Packets that the hosts' NICs sent again."""
    retransmits_by_host: dict[str, int] = field(default_factory=dict)

    def plus(self, earlier: WireSample) -> WireSample:
        """Adds the totals of an earlier life of the switch, which its hosts' NICs shared."""
        by_host = {
            name: count + earlier.retransmits_by_host.get(name, 0)
            for name, count in self.retransmits_by_host.items()
        }
        return WireSample(
            at_s=self.at_s,
            frames=self.frames + earlier.frames,
            frames_lost=self.frames_lost + earlier.frames_lost,
            duplicated=self.duplicated + earlier.duplicated,
            reordered=self.reordered + earlier.reordered,
            retransmits=sum(by_host.values()),
            retransmits_by_host=by_host,
        )

    @classmethod
    def of(cls, switch: dict[str, Any], hosts: dict[str, dict[str, Any]], at_s: float) -> WireSample:
        """From the status records of the switch and of each host."""
        totals = switch["totals"]
        by_host = {name: host["nic"].get("retransmits", 0) for name, host in hosts.items()}
        return cls(
            at_s=at_s,
            frames=totals["frames_in"] + totals["frames_out"],
            frames_lost=totals["frames_lost"],
            duplicated=totals["frames_duplicated"],
            reordered=totals["frames_reordered"],
            retransmits=sum(by_host.values()),
            retransmits_by_host=by_host,
        )


class Watch(ABC):
    """``line`` is the sink of all workers' lines; ``until_ended`` follows them."""

    def __init__(
        self, cluster: Cluster, display: Display, *, idle_timeout_s: float, interval_s: float
    ) -> None:
        self.display = display
        self._followed = cluster
        self._idle_timeout_s = idle_timeout_s
        self._interval_s = interval_s
        self._lines: queue.SimpleQueue[tuple[Child, str | None]] = queue.SimpleQueue()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_STEPS)
        self.start_s = time.monotonic()

    @property
    def at_s(self) -> float:
        """Now, since the watch began."""
        return time.monotonic() - self.start_s

    @abstractmethod
    def look(self) -> None:
        """Ask the daemons how they are; once in every interval."""

    @abstractmethod
    def stepped(self, step: dict[str, Any]) -> None:
        """The first of the workers has ended a step of training."""

    def line(self, child: Child, text: str | None) -> None:
        """A worker's line, or None at its end; any thread."""
        self._lines.put((child, text))

    def until_ended(self, children: Sequence[Child]) -> None:
        """Follow these until all have ended well. Raises ``ClusterError`` when one fails or all stall."""
        cluster, running = self._followed, set(children)
        heard = next_look = time.monotonic()
        while running:
            now = time.monotonic()
            if now >= next_look:
                cluster.check()
                self.look()
                next_look = time.monotonic() + self._interval_s
            if now - heard > self._idle_timeout_s:
                names = ", ".join(sorted(child.name for child in running))
                raise cluster.failure(f"nothing from {names} for {self._idle_timeout_s:.0f} s")
            try:
                child, text = self._lines.get(timeout=max(0.0, next_look - now))
            except queue.Empty:
                continue
            heard = time.monotonic()
            if text is None:
                status = child.process.wait()
                if status:
                    raise cluster.failure(f"{child.name} ended with status {status}")
                running.discard(child)
            elif not text.startswith("{"):
                child.log(text)
            elif child is children[0]:
                self.stepped(json.loads(text))

    def show(self, step: dict[str, Any], wire: WireSample | None, path: str = "") -> None:
        self._recent.append(step)
        self.display.update(
            State(
                step=step["step"],
                steps=step["steps"],
                loss=step["loss"],
                train_accuracy=statistics.fmean(each["train_accuracy"] for each in self._recent),
                latency_ms=1e3 * statistics.median(each["sum_s"] for each in self._recent),
                frames_lost=wire.frames_lost if wire else None,
                retransmits=wire.retransmits if wire else None,
                path=path,
            )
        )


class SwitchWatch(Watch):
    """One switch, which may be killed at a step of the training."""

    def __init__(
        self,
        cluster: LocalCluster,
        display: Display,
        *,
        idle_timeout_s: float,
        kill_switch_at: int | None = None,
    ) -> None:
        super().__init__(cluster, display, idle_timeout_s=idle_timeout_s, interval_s=SAMPLE_INTERVAL_S)
        self.switch_kills = 0
        self._cluster = cluster
        self._kill_switch_at = kill_switch_at
        """Step of the workers at which the switch is killed and started anew."""
        self._before: WireSample | None = None
        """Totals of the switch that was killed."""
        self.wire: list[WireSample] = []

    def look(self) -> None:
        cluster = self._cluster
        hosts = {host.name: cluster.host_status(index) for index, host in enumerate(cluster.hosts)}
        sample = WireSample.of(cluster.switch_status(), hosts, self.at_s)
        self.wire.append(sample if self._before is None else sample.plus(self._before))

    def stepped(self, step: dict[str, Any]) -> None:
        self.show(step, self.wire[-1] if self.wire else None)
        if self._kill_switch_at is not None and step["step"] >= self._kill_switch_at:
            self._kill_switch()

    def _kill_switch(self) -> None:
        self.look()
        self._before = self.wire[-1]
        self._kill_switch_at = None
        self.display.stage("the switch is killed (SIGKILL), and started anew")
        self._cluster.kill_switch()
        self.switch_kills += 1
