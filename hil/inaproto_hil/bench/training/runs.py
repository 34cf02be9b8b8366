"""Runs: the processes of a script, with a contender's machines below them, that are stopped and continued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from inaproto_hil.bench.peers.config import BEFORE, GLOO, INAPROTO
from inaproto_hil.bench.peers.contenders import (
    BeforeCluster,
    ContenderCluster,
    DaemonsCluster,
    GlooCluster,
    address_of,
    machines_of,
)
from inaproto_hil.bench.peers.tools import Tools
from inaproto_hil.bench.training.config import ALONE, COMMUNICATION, OURS, TRAINING, Config
from inaproto_hil.bench.training.steps import UNCOUNTED, StepLog, counted, sample
from inaproto_hil.rigs.cluster import Child, stop_children
from inaproto_hil.rigs.environment import machine_cpu_s
from inaproto_hil.rigs.links import INTERFACE

START_S: Final = 300.0
"""For all ranks to import torch, connect, and make their first steps."""
LOOK_S: Final = 1.0
STEPS_MAX: Final = 1_000_000_000
PORT: Final = 29500
"""Of the store of a run's ranks, at rank 0; the next run of the same machines has the next one."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one turn of a run was."""

    seconds: tuple[tuple[float, ...], ...]
    """Of each rank, of the steps that count."""
    sample_s: float
    """Of a step, as :func:`~inaproto_hil.bench.training.steps.sample` has it."""
    steps: float
    """That ended in it, mean over the ranks."""
    cpu_s: Mapping[str, float]
    """Of the contender's processes, by what they are."""
    machine_cpu_s: float
    """Of the whole machine meanwhile."""
    whole_s: float


@dataclass(frozen=True, slots=True)
class Machines:
    """Of one contender, with the daemons that it needs."""

    contender: str
    cluster: ContenderCluster
    version: str
    environment: Mapping[str, str]

    def of_rank(self, rank: int) -> dict[str, str]:
        """What the processes of a rank find in their environment beside what a launcher gives."""
        found = {"GLOO_SOCKET_IFNAME": INTERFACE, **self.environment}
        if self.contender in OURS:
            found |= {"INAPROTO_TORCH": GLOO, "INAPROTO_HOST_SOCKET": str(self.cluster.host_socket(rank))}
        return found


class Run:
    """The ranks of one script with one contender; stopped unless it has its turn."""

    def __init__(
        self, machines: Machines, config: Config, tools: Tools, model: str, kind: str, port: int
    ) -> None:
        self.machines, self.kind = machines, kind
        self._config = config
        cluster, ranks = machines.cluster, machines.cluster.config.hosts
        self.log = StepLog(ranks)
        self._numbers: dict[str, int] = {}
        self.children: list[Child] = []
        words = [str(tools.python), "-P", config.script, "--model", model, "--steps", str(STEPS_MAX)]
        words += ["--batch", str(config.batch), "--scale", str(config.scale), "--check", str(config.check)]
        words += ["--bucket", f"{config.bucket_mib:g}"] if config.bucket_mib is not None else []
        words += ["--communication-only"] if kind == COMMUNICATION else []
        for rank in range(ranks):
            name = f"{model}-{kind}{rank}"
            self._numbers[name] = rank
            environment = launched(rank, ranks, port) if kind != ALONE else launched(0, 1, port)
            environment |= {"GLOO_SOCKET_IFNAME": "lo"} if kind == ALONE else machines.of_rank(rank)
            self.children.append(
                cluster.rank(name, words, network=cluster.network(rank), sink=self._heard, **environment)
            )

    @property
    def contender(self) -> str:
        """``alone`` for one that has none."""
        return ALONE if self.kind == ALONE else self.machines.contender

    @property
    def name(self) -> str:
        return ALONE if self.kind == ALONE else f"{self.contender}, {self.kind}"

    def path(self) -> str:
        """By which way the daemons have added up for jobs that are there; empty without daemons."""
        cluster = self.machines.cluster
        if self.kind == ALONE or not cluster.hosts:
            return ""
        return path_of(cluster.host_status(0))

    def wait_for(self, ended: int, *, least_s: float, deadline_s: float) -> None:
        """Until every rank has ended so many steps in this turn, and at least so long.

        Raises ``ClusterError`` with the logs where one has ended, or they do not come to it in time.
        """
        began = time.monotonic()
        with self.log.changed:
            while (took := time.monotonic() - began) < least_s or self.log.ended(self.log.turn) < ended:
                if took >= deadline_s:
                    raise self._failure(
                        f"{self.name}: no rank may take longer than {deadline_s:.0f} s for {ended} steps, "
                        f"but these have ended: {[len(one) for one in self.log.in_turn(self.log.turn)]}"
                    )
                self.log.changed.wait(min(LOOK_S, max(least_s - took, 0.01)))
                gone = [child.name for child in self.children if child.exit_status is not None]
                if gone:
                    raise self._failure(f"{self.name}: {', '.join(gone)} ended")

    def start(self) -> None:
        """Wait until it trains, then stop it."""
        self.wait_for(UNCOUNTED + 1, least_s=0.0, deadline_s=START_S)
        self.pause()

    def turn(self) -> TurnResult:
        config = self._config
        before, machine_before, began = self.cpu_s(), machine_cpu_s(), time.monotonic()
        self.go_on()
        ended = UNCOUNTED + config.steps
        self.wait_for(ended, least_s=config.turn_s, deadline_s=config.timeout_s * (ended + 1))
        self.pause()
        whole_s, machine_s = time.monotonic() - began, machine_cpu_s() - machine_before
        after = self.cpu_s()
        ranks = self.log.in_turn(self.log.turn)
        return TurnResult(
            seconds=tuple(tuple(counted(steps)) for steps in ranks),
            sample_s=sample(ranks),
            steps=sum(map(len, ranks)) / len(ranks),
            cpu_s={kind: after[kind] - before[kind] for kind in after},
            machine_cpu_s=machine_s,
            whole_s=whole_s,
        )

    def cpu_s(self) -> dict[str, float]:
        cluster = self.machines.cluster
        kinds: dict[str, Sequence[Child]] = {"switch": cluster.switches, "hosts": cluster.hosts}
        kinds = {kind: found for kind, found in kinds.items() if found and self.kind != ALONE}
        kinds["ranks"] = self.children
        return {kind: sum(child.cpu_s() for child in found) for kind, found in kinds.items()}

    def go_on(self) -> None:
        """The ranks are continued; what they say is of a new turn."""
        with self.log.changed:
            self.log.turn += 1
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        """The ranks are stopped; daemons are not: without ranks they do nothing."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the ranks, which are continued for it: one that is stopped hears no SIGTERM."""
        for child in self.children:
            with suppress(OSError):
                child.process.terminate()
        self._signal(signal.SIGCONT)
        stop_children(self.children)
        for child in self.children:
            self.machines.cluster.workers.remove(child)

    def _signal(self, number: signal.Signals) -> None:
        for child in self.children:
            if child.exit_status is None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, number)

    def _heard(self, child: Child, line: str | None) -> None:
        """In a thread of this child."""
        if line is None:
            with self.log.changed:
                self.log.changed.notify_all()
        elif not self.log.take(self._numbers[child.name], line):
            child.log(line)

    def _failure(self, what: str) -> Exception:
        return self.machines.cluster.failure(what)


def path_of(status: Mapping[str, Any]) -> str:
    """What a host daemon's status says: ``none`` if not one operation of its jobs has been added up, so that
    torch has done it all by itself."""
    by = [ring["operations_by_path"] for ring in status["rings"]]
    return "+".join(sorted({path for one in by for path, operations in one.items() if operations})) or "none"


def launched(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a process; rank 0 is at the first machine, one that is alone at itself."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address_of(0) if ranks > 1 else "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def open_machines(
    config: Config, ranks: int, rate_bps: int, paths: Mapping[str, str], tools: Tools, stack: ExitStack
) -> dict[str, Machines]:
    """Those of all contenders that have a path in ``paths``; they end with the stack."""
    links = config.links(ranks, rate_bps)
    found: dict[str, Machines] = {}
    for name in config.contenders:
        if name not in paths:
            continue
        if name == GLOO:
            cluster: ContenderCluster = GlooCluster(links, *machines_of(links, stack, is_bridge=True))
        else:
            kind = {INAPROTO: DaemonsCluster, BEFORE: BeforeCluster}[name]
            cluster = kind(links, *machines_of(links, stack, is_bridge=False, has_addresses=True))
        stack.enter_context(cluster)
        version = f"torch {tools.versions[GLOO]}"
        if isinstance(cluster, DaemonsCluster):
            version = f"{cluster.version()}, {version}"
        found[name] = Machines(name, cluster, version, {"PYTHONPATH": paths[name]} if paths[name] else {})
    return found


def open_runs(
    config: Config, tools: Tools, model: str, machines: Mapping[str, Machines], stack: ExitStack
) -> list[Run]:
    """All runs of a model, not yet awaited; ``alone`` is at the machines of the first contender."""
    kinds = [(one, kind) for one in machines.values() for kind in (TRAINING, COMMUNICATION)]
    kinds += [(next(iter(machines.values())), ALONE)]
    if not config.has_parts:
        kinds = [(one, kind) for one, kind in kinds if kind == TRAINING]
    found = []
    for nth, (one, kind) in enumerate(kinds):
        run = Run(one, config, tools, model, kind, PORT + nth)
        stack.callback(run.close)
        found.append(run)
        run.start()
    return found
