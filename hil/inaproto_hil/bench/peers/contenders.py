"""Contenders: processes of a system that sums, started on links or on one machine, with their ranks.

Each contender has links of its own, all alike, so that frames of one are not seen by the daemons of another.
Only one at a time is at work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto_hil.bench.peers.config import BEFORE, BUFFER, FLOAT_BYTES, GLOO, MPI, OURS, Config
from inaproto_hil.bench.peers.stepped import SteppedRanks
from inaproto_hil.bench.peers.tools import Tools
from inaproto_hil.ranks.stepping import RankPlan
from inaproto_hil.rigs.cluster import Child, Cluster, LineSink, inaproto_command
from inaproto_hil.rigs.links import INTERFACE, bridge, port, star
from inaproto_hil.rigs.namespaces import Namespace, namespaces

OUTSIDE: Final = Path(__file__).parents[2] / "ranks" / "outside.py"
LOOPBACK: Final = "lo"


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    ranks: SteppedRanks
    processes: Mapping[str, Sequence[Child]]
    """By what they are; their CPU counts beside what the ranks say of themselves."""
    version: str
    resent: Callable[[], int | None]
    """Packets that were sent again since it began; None where nobody counts them."""

    def cpu_s(self) -> dict[str, float]:
        """So far, of each kind of its processes."""
        return {kind: sum(child.cpu_s() for child in found) for kind, found in self.processes.items()}


class ContenderCluster(Cluster):
    """Machines of a contender; without links there are none, and this one is it."""

    def __init__(self, config: Config, switch: Namespace | None, machines: Sequence[Namespace]) -> None:
        super().__init__(log_dir=None)
        self.config = config
        self.switch = switch
        self.machines = machines
        self._kept = ExitStack()

    def _start(self) -> None:
        """Nothing but ranks, unless there are daemons."""

    def stepped(self, name: str, start: Callable[[RankPlan], list[Child]], **extra: Any) -> SteppedRanks:
        """Ranks that ``start`` starts, when they all have connected."""
        config = self.config
        path = self.directory / f"{name}.steps"
        ranks = SteppedRanks(self, path, config.hosts)
        self._kept.callback(ranks.close)
        largest, pool = max(config.sizes) // FLOAT_BYTES, config.pool_bytes // FLOAT_BYTES
        ranks.accept(start(RankPlan(str(path), config.hosts, largest, pool, config.timeout_s, extra)))
        return ranks

    def rank(
        self,
        name: str,
        argv: Sequence[str],
        *,
        network: str = "",
        sink: LineSink | None = None,
        **environment: str,
    ) -> Child:
        """``sink``: where its lines go; None: its log."""
        return self.start_worker(name, argv, sink=sink or _log, environment=environment, network=network)

    def network(self, machine: int) -> str:
        return self.machines[machine].path if self.machines else ""

    def close(self) -> None:
        self._kept.close()
        super().close()


class DaemonsCluster(ContenderCluster):
    """A switch daemon, and host daemons: one for each machine."""

    command: Sequence[str] = ()
    """Empty: ``inaproto`` of this environment."""
    module: Sequence[str] = (sys.executable, "-m", "inaproto_hil.ranks.daemons")

    def _daemon(self, name: str, argv: Sequence[str], *, append: bool = False) -> Child:
        return super()._daemon(name, [*self.command, *argv[1:]] if self.command else argv, append=append)

    def _start(self) -> None:
        config = self.config
        count = config.hosts // config.ranks_per_daemon
        adapter = [] if self.machines else ["--adapter", config.adapter]
        argv = [inaproto_command(), "switch", "--dir", str(self.directory), *adapter, *config.switch_options]
        if self.machines:
            argv += [word for n in range(count) for word in ("--port", config.port.format(port(n)))]
        self.switches.append(self._daemon("switch", argv))
        for host in range(count):
            words = [*adapter, *(word.replace("{n}", str(host)) for word in config.host_options)]
            if self.machines:
                words += ["--port", config.port.format(INTERFACE)]
            for option, value in (
                ("--mtu", config.mtu),
                ("--window-messages", config.window),
                ("--message-packets", config.message_packets),
                ("--transport-timeout", config.transport_timeout),
            ):
                words += [option, str(value)]
            self.hosts.append(self._host(host, self.directory, *words))

    def _network_of(self, name: str) -> str:
        if self.switch is None:
            return ""
        return self.switch.path if name == "switch" else self.network(int(name[1:]))

    def retransmits(self) -> int:
        return sum(self.host_status(host)["nic"]["retransmits"] for host in range(len(self.hosts)))

    def contender(self, name: str) -> Contender:
        """Of private arrays, or of one that is shared with the daemons."""
        sockets = [str(self.host_socket(n // self.config.ranks_per_daemon)) for n in range(self.config.hosts)]

        def start(plan: RankPlan) -> list[Child]:
            return [
                self.rank(f"{name}{rank}", [*self.module, str(rank), plan.encode()])
                for rank in range(self.config.hosts)
            ]

        ranks = self.stepped(name, start, job=name, sockets=sockets, buffer=name == BUFFER)
        processes = {"switch": self.switches, "hosts": self.hosts}
        return Contender(name, ranks, processes, self.version(), self.retransmits)

    def version(self) -> str:
        """As the switch says it, with the kernels that it runs."""
        path = self.directory / CONTROL_SOCKET
        status = self._status(self.switches[0], "the switch", path)
        kernels = status.get("kernels")
        return f"inaproto {status['version']}" + (f", kernels {kernels}" if kernels else "")


class BeforeCluster(DaemonsCluster):
    """The same of another inaproto, or of this one with other settings."""

    def __init__(self, config: Config, switch: Namespace | None, machines: Sequence[Namespace]) -> None:
        super().__init__(config, switch, machines)
        if config.before != sys.executable:
            self.command = [str(Path(config.before).with_name("inaproto"))]
            self.module = [config.before, "-P", str(OUTSIDE), "inaproto_hil.ranks.daemons"]


class GlooCluster(ContenderCluster):
    """Ranks of torch."""

    def contender(self, tools: Tools) -> Contender:
        def start(plan: RankPlan) -> list[Child]:
            interface = INTERFACE if self.machines else LOOPBACK
            words = [str(tools.python), "-P", str(OUTSIDE), "inaproto_hil.ranks.gloo"]
            return [
                self.rank(
                    f"gloo{rank}",
                    [*words, str(rank), plan.encode()],
                    network=self.network(rank),
                    GLOO_SOCKET_IFNAME=interface,
                )
                for rank in range(self.config.hosts)
            ]

        ranks = self.stepped(GLOO, start, store=str(self.directory / "gloo.store"))
        return Contender(GLOO, ranks, {}, ranks.version, self.retransmits)

    def retransmits(self) -> int | None:
        """TCP segments, of all machines; those of loopback are not ours alone."""
        return sum(map(_tcp_retransmits, self.machines)) if self.machines else None


class MpiCluster(ContenderCluster):
    """Ranks of Open MPI on this machine."""

    def contender(self, tools: Tools) -> Contender:
        found: list[Child] = []

        def start(plan: RankPlan) -> list[Child]:
            words = [str(tools.mpirun), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            words += ["-n", str(self.config.hosts)]
            rank = [str(tools.python), "-P", str(OUTSIDE), "inaproto_hil.ranks.mpi", plan.encode()]
            found.append(self.rank("mpirun", [*words, *rank]))
            return found

        ranks = self.stepped(MPI, start)
        return Contender(MPI, ranks, {"mpirun": found}, ranks.version, lambda: None)


def open_contenders(config: Config, tools: Tools, stack: ExitStack) -> list[Contender]:
    """All that are asked for and can be had, connected; they end with the stack."""
    found = []
    ours = [name for name in config.only if name in OURS]
    if ours:
        daemons = stack.enter_context(DaemonsCluster(config, *machines_of(config, stack, is_bridge=False)))
        found += [daemons.contender(name) for name in ours]
    if config.before:
        other = config.of_before()
        before = stack.enter_context(BeforeCluster(other, *machines_of(other, stack, is_bridge=False)))
        found.append(before.contender(BEFORE))
    if GLOO in config.only and tools.why_not(GLOO, config) is None:
        gloo = stack.enter_context(GlooCluster(config, *machines_of(config, stack, is_bridge=True)))
        found.append(gloo.contender(tools))
    if MPI in config.only and tools.why_not(MPI, config) is None:
        mpi = stack.enter_context(MpiCluster(config, None, []))
        found.append(mpi.contender(tools))
    return found


def machines_of(
    config: Config, stack: ExitStack, *, is_bridge: bool, has_addresses: bool = False
) -> tuple[Namespace | None, Sequence[Namespace]]:
    """A switch and machines with links to it; None and nothing where all is on this one.

    ``is_bridge``: the kernel forwards there, and machines have the addresses that :func:`address_of` says;
    ``has_addresses``: they have them anyway.
    """
    if config.link is None:
        return None, []
    titles = [f"host {number}" for number in range(config.hosts)]
    switch, cables, *machines = stack.enter_context(namespaces("switch", "cables", *titles))
    between = cables if config.has_cables else None
    star(switch, machines, config.link, mtu=config.link_mtu, cables=between)
    if is_bridge:
        bridge(switch, "bridge", [port(number) for number in range(len(machines))])
    if is_bridge or has_addresses:
        for number, machine in enumerate(machines):
            machine.ip("addr", "add", f"{address_of(number)}/16", "dev", INTERFACE)
    return switch, machines


def address_of(machine: int) -> str:
    """What the kernel of a machine answers to; daemons have other addresses."""
    return f"10.78.{machine >> 8}.{(machine & 255) + 1}"


def _tcp_retransmits(machine: Namespace) -> int:
    with machine.entered():
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def _log(child: Child, line: str | None) -> None:
    if line is not None:
        child.log(line)
