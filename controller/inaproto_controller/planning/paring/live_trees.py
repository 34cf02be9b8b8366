"""Trees that PARING plans for the jobs of a live cluster, as switches of its fabric can have them.

Either a job's hosts are known, and of PARING's joint question the tree is left (section IV-C.1: its workers
are fixed: ``planned``); or hosts and tree are chosen together, of the hosts that are idle (``placed``). What
differs from the planner's world:

- *The parameter server is a switch* that sums: in-network reduction has no server, its root sums and sends
  the results down. Each switch that could be the root is planned for as if a server with its capacity stood
  beside it, over one link that is none: it is taken off the count of links again. A software switch at a
  server, which has one link, is the paper's parameter server.
- *One part for each switch, one way up*: see ``one_way_up``. The tree of the best root is taken: of highest
  rate, then of fewest links, then the nearest to the hosts.
- *In order*: when its switches have no turn for it, a job's hosts sum as a chain, and get the same bytes. So
  trees that do not add its hosts in the order of their ranks are no answer; the best root may depend on it.
  Where hosts are chosen, too, they get their ranks in an order in which the tree adds them, and the fabric's
  own tree, on which rings begin.
- *What is free*: a switch without a slot, or that is away, adds nothing up; of the capacity of others that is
  free which no other job's tree takes: rate times load of each of its switches, when its tree was planned.

Capacities are those of the cluster file. Whatever has no answer is ``Infeasible``, with what proves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from inaproto.daemon.switch.tree_records import TOLD_SWITCHES_MAX
from inaproto.errors import Infeasible
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.cluster.graph_topology import UNREACHABLE, GraphLink, GraphTopology
from inaproto_controller.planning.paring.live_tree import Link, LivePlace, LiveTree
from inaproto_controller.planning.paring.model import (
    ZERO,
    Capacity,
    Node,
    PlacedTree,
    ProgrammableNetwork,
    Task,
)
from inaproto_controller.planning.paring.one_way_up import Folded, folded
from inaproto_controller.planning.paring.planner import SECONDS, Mode, plan
from inaproto_controller.planning.paring.rank_order import are_whole, common_order, parts_of

ROOTS_MAX: Final = 12
"""Most roots that are planned for: those nearest to the hosts."""
NO_ROOT: Final = "no switch that reaches all hosts has a slot and capacity left"
SEVERAL_HOMES: Final = "a host with several links: the fabric knows it at one switch"
STRANGE: Final = "a host that the cluster file has not, or fewer than two"
FEW_IDLE: Final = "too few idle hosts with one link each"
REFUSED: Final = "the fabric has refused the tree"
OUT_OF_ORDER: Final = "its tree does not add the hosts in the order of their ranks"
TOO_LARGE: Final = "a tree of more switches than a message can say"


class LiveTrees:
    """``capacities``: Gbit/s that switches add up, by name; others add nothing. ``rate_cap``: that a host
    sends at most. ``slots``: trees that a switch adds up for at a time, where that has a limit. ``mode``,
    ``seconds``: as ``plan`` takes them. ``own_above``: the switch above each in the fabric's own tree, on
    which rings begin, where it is known."""

    def __init__(
        self,
        topology: GraphTopology,
        capacities: Mapping[str, Capacity],
        rate_cap: Fraction,
        *,
        slots: Mapping[str, int] | None = None,
        own_above: Mapping[str, str] | None = None,
        mode: Mode = Mode.FAST,
        seconds: float = SECONDS,
    ) -> None:
        self.capacities: Final[Mapping[str, Capacity]] = {
            switch.name: capacities[switch.name]
            for switch in topology.switches
            if switch.aggregates and capacities.get(switch.name, ZERO) != 0
        }
        self.rate_cap: Final = rate_cap
        self._slots, self._own_above = slots or {}, own_above or {}
        self._mode, self._seconds = mode, seconds
        self.topology: Final = topology
        self._hosts = {name: number for number, name in enumerate(topology.host_names)}
        self._topology = _with_servers(topology, tuple(self.capacities))
        self._number = {self._topology.name(node): node for node in range(self._topology.nodes)}

    def free(self, others: Iterable[LiveTree], without: Collection[str] = ()) -> dict[str, Capacity]:
        """What trees leave of the capacities: nothing at a switch that has no slot left. ``without``:
        switches that cannot be had now."""
        held: dict[str, Fraction] = {}
        used = Counter[str]()
        for one in others:
            used.update(one.adders)
            for name, rate in one.held.items():
                held[name] = held.get(name, ZERO) + rate
        left: dict[str, Capacity] = {}
        for name, capacity in self.capacities.items():
            if name in without or used[name] >= self._slots.get(name, used[name] + 1):
                left[name] = ZERO
            else:
                left[name] = None if capacity is None else max(ZERO, capacity - held.get(name, ZERO))
        return left

    def planned(
        self,
        hosts: Sequence[str],
        free: Mapping[str, Capacity],
        root: str = "",
        barred: Collection[FabricTree] = (),
    ) -> LiveTree | Infeasible:
        """``hosts``: by rank; ``free``: as the method of that name says it; ``root``: where a person wants
        it, if anywhere; ``barred``: trees that are no answer."""
        numbers = sorted({self._hosts[host] for host in hosts if host in self._hosts})
        if len(numbers) < 2 or len(numbers) < len(set(hosts)):
            return Infeasible(STRANGE, {"hosts": len(set(hosts)), "known": len(numbers)})
        torn = next((one for one in numbers if len(self.topology.homes[one]) > 1), None)
        if torn is not None:
            return Infeasible(SEVERAL_HOMES, {"host": self.topology.name(torn)})
        best: LiveTree | None = None
        roots = self._roots(numbers, len(numbers), free, root)
        refusal = Infeasible(NO_ROOT, {"switches": len(free), "with capacity": _some(free)})
        for name in roots:
            for found in self._rooted(name, numbers, len(numbers), free):
                if isinstance(found, Infeasible):
                    refusal = found
                    continue
                tree, _ = found
                if tree.tree in barred:
                    refusal = Infeasible(REFUSED, {"root": name})
                elif not self._is_in_order(tree.tree, hosts):
                    refusal = Infeasible(OUT_OF_ORDER, {"root": name})
                elif best is None or tree.worth > best.worth:
                    best = tree
        return refusal if best is None else best

    def placed(
        self,
        count: int,
        idle: Collection[str],
        free: Mapping[str, Capacity],
        instead: Sequence[str] = (),
    ) -> LivePlace | Infeasible:
        """Which ``count`` of the hosts ``idle`` a job gets, in the order of its ranks, and its tree.

        ``instead``: hosts that it would get without a tree in mind; they are taken unless others have a
        better one, so what comes out is never worse than a tree that is planned for them."""
        numbers = self._one_home(idle)
        if count < 2 or len(numbers) < count:
            return Infeasible(FEW_IDLE, {"hosts": count, "idle": len(numbers)})
        best: LivePlace | None = None
        refusal = Infeasible(NO_ROOT, {"switches": len(free), "with capacity": _some(free)})
        given = self._one_home(instead)
        asked = [numbers] if len(given) < count else [given, numbers]
        for some in asked:
            for name in self._roots(some, count, free, ""):
                for found in self._rooted(name, some, count, free):
                    if isinstance(found, Infeasible):
                        refusal = found
                        continue
                    tree, hosts = found
                    if best is not None and tree.worth <= best.tree.worth:
                        continue
                    ranked = self._ranked(tree.tree, hosts)
                    if ranked is None:
                        refusal = Infeasible(OUT_OF_ORDER, {"root": name})
                    else:
                        best = LivePlace(ranked, tree)
        return refusal if best is None else best

    def again(self, tree: FabricTree, hosts: Sequence[str], rate: Fraction) -> LiveTree | None:
        """A tree that was planned before, for this rate; None where hosts are there no more."""
        if not self._hosts.keys() >= set(hosts):
            return None
        return replace(self.of(tree, hosts, {}), rate=rate)

    def of(self, tree: FabricTree, hosts: Sequence[str], free: Mapping[str, Capacity]) -> LiveTree:
        """A tree that a job has, whoever planned it: at the rate that ``free`` gives it."""
        above, passing = dict(tree.above), set(tree.passing)
        adds = {name for name in (tree.root, *above) if name in self.capacities and name not in passing}
        gradients: Counter[Link] = Counter()
        loads: Counter[str] = Counter()
        senders: list[tuple[str, str]] = []
        for host in hosts:
            home = self.topology.name(self.topology.hosts + self.topology.homes[self._hosts[host]][0])
            gradients[host, home] += 1
            senders.append((home, host))
        sums: dict[str, None] = {}
        while senders:
            at, _ = senders.pop()
            while at not in adds and at in above:
                gradients[at, above[at]] += 1
                at = above[at]
            loads[at] += 1
            if at in above and at not in sums:
                sums[at] = None
                gradients[at, above[at]] += 1
                senders.append((above[at], at))
        rates = [self.rate_cap]
        for name, load in loads.items():
            capacity = free.get(name, ZERO)
            rates += [] if capacity is None else [capacity / load]
        ordered = dict(sorted(loads.items()))
        return LiveTree(tree, tuple(sorted(adds)), min(rates), ordered, dict(sorted(gradients.items())))

    def _one_home(self, hosts: Iterable[str]) -> list[Node]:
        """Those of them that the fabric knows at one switch."""
        known = {self._hosts[host] for host in hosts if host in self._hosts}
        return sorted(one for one in known if len(self.topology.homes[one]) == 1)

    # -- one root

    def _roots(
        self, hosts: Sequence[Node], count: int, free: Mapping[str, Capacity], wanted: str
    ) -> list[str]:
        """Those nearest to the ``count`` hosts that are nearest to each."""
        away: list[tuple[int, int, str]] = []
        for number, switch in enumerate(self.topology.switches):
            if free.get(switch.name, ZERO) == 0 or wanted not in ("", switch.name):
                continue
            distances = sorted(int(self.topology.all_distances[number, host]) for host in hosts)[:count]
            if distances[-1] < UNREACHABLE:
                away.append((sum(distances), number, switch.name))
        return [name for _, _, name in sorted(away)[:ROOTS_MAX]]

    def _rooted(
        self, root: str, hosts: Sequence[Node], count: int, free: Mapping[str, Capacity]
    ) -> Iterator[tuple[LiveTree, list[str]] | Infeasible]:
        """Trees, each with its hosts in the order of the cluster file: ``count`` of these.

        The planner counts the link to the server that is none, once for each gradient that comes to the root;
        so where the root alone adds up, for the nearest hosts, may be better than what it finds.
        """
        topology, number = self._topology, self._number
        ps = number[_server(root)]
        capacities: list[Capacity] = [ZERO] * topology.nodes
        for name, capacity in free.items():
            capacities[number[name]] = capacity
        capacities[number[root]], capacities[ps] = ZERO, free[root]
        network = ProgrammableNetwork(topology, tuple(capacities))
        task = Task(count, 1, self.rate_cap)
        workers = [number[self.topology.name(host)] for host in hosts]
        may = {ps, *workers}
        busy = [node for node in range(topology.hosts) if node not in may]
        found = plan(network, task, busy=busy, ps=ps, is_coarse=True, mode=self._mode, seconds=self._seconds)
        if isinstance(found, Infeasible):
            yield found
            return
        nearest = sorted(workers, key=lambda worker: (network.distance(ps, worker), worker))[:count]
        for tree in (found.tree, PlacedTree(ps, dict.fromkeys(nearest, ps))):
            named = self._named(root, folded(network, task, tree), ps)
            if isinstance(named, Infeasible):
                yield named
            else:
                yield named, [topology.name(node) for node in tree.workers(network)]

    def _named(self, root: str, shape: Folded, ps: Node) -> LiveTree | Infeasible:
        name = self._topology.name
        above = {one: over for one, over in shape.above.items() if over != ps}
        if len(above) > TOLD_SWITCHES_MAX:
            return Infeasible(TOO_LARGE, {"switches": len(above), "at most": TOLD_SWITCHES_MAX})
        tree = FabricTree(
            root,
            tuple(sorted((name(one), name(over)) for one, over in above.items())),
            tuple(sorted(name(one) for one in shape.passing if one in above)),
        )
        loads = {name(one): load for one, load in shape.measures.loads.items() if one != ps}
        loads[root] = shape.measures.loads[ps]
        return LiveTree(
            tree,
            tuple(sorted(loads)),
            shape.measures.rate,
            dict(sorted(loads.items())),
            self._carried(shape.tree, shape.above, ps),
        )

    def _carried(self, tree: PlacedTree, above: Mapping[Node, Node], ps: Node) -> dict[Link, int]:
        """Without the link to the server, which there is not."""
        name, found = self._topology.name, Counter[Link]()
        for start, end in tree.parents.items():
            node = start
            while node != end:
                after = self._home(node) if node not in above else above[node]
                if after != ps:
                    found[name(node), name(after)] += 1
                node = after
        return dict(sorted(found.items()))

    def _is_in_order(self, tree: FabricTree, hosts: Sequence[str]) -> bool:
        return are_whole(range(len(hosts)), parts_of(dict(tree.above), self._homes(hosts)))

    def _ranked(self, tree: FabricTree, hosts: Sequence[str]) -> tuple[str, ...] | None:
        """Hosts in an order in which this tree adds them, and the fabric's own."""
        homes = self._homes(hosts)
        parts = parts_of(dict(tree.above), homes) | parts_of(self._own_above, homes)
        order = common_order(len(hosts), parts)
        return None if order is None else tuple(hosts[number] for number in order)

    def ranked(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Hosts in an order in which the fabric's own tree adds them, as far as one is known."""
        return self._ranked(FabricTree(""), hosts) or tuple(hosts)

    def _homes(self, hosts: Sequence[str]) -> list[str]:
        """The switch of each, if it has one alone."""
        names = []
        for host in hosts:
            homes = self.topology.homes[self._hosts[host]]
            names.append(self.topology.name(self.topology.hosts + homes[0]) if len(homes) == 1 else "")
        return names

    def _home(self, host: Node) -> Node:
        return self._topology.hosts + self._topology.homes[host][0]


def _some(free: Mapping[str, Capacity]) -> int:
    return sum(capacity != 0 for capacity in free.values())


def _server(switch: str) -> str:
    """A name that no node has: those of hosts and switches have no spaces."""
    return f"server at {switch}"


def _with_servers(topology: GraphTopology, roots: Sequence[str]) -> GraphTopology:
    """The network with a server at each of these switches, behind the hosts."""
    hosts, added = topology.hosts, len(roots)
    at = {switch.name: hosts + added + number for number, switch in enumerate(topology.switches)}

    def moved(node: Node) -> Node:
        return node if node < hosts else node + added

    links = [GraphLink(moved(link.one), moved(link.other), link.jobs) for link in topology.links]
    links += [GraphLink(hosts + number, at[root]) for number, root in enumerate(roots)]
    return GraphTopology(
        (*topology.host_names, *map(_server, roots)), topology.switches, tuple(links), topology.may_be_apart
    )
