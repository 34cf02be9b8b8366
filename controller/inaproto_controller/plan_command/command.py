"""``inaproto plan paring``: where a job should run, and who adds up its gradients, on any network."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click

from inaproto.cli import guarded
from inaproto.errors import ConfigError, Infeasible
from inaproto.option_types import FiniteRange, ReportFile, WholeGroup, write_report, write_text
from inaproto.reader_gone import unread

DEGREE_MAX: Final = 32
CAPACITY: Final = Fraction(10)
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20}
_UNITS_MORE: Final = {"GIB": 1 << 30, "TB": 10**12}

_EPILOG: Final = """
\b
Switches of a fat tree: e{pod}.{i} edge, a{pod}.{j} aggregation, c{i} core; * is all. Servers: h0, h1, ...
In a file (docs/cluster-files.md) switches that add up have a "capacity" in Gbit/s; names are the file's.
A name with blanks in it stands alone in its option: --busy "host 0" --busy "h1 h2" --fee "leaf 0=2".

\b
Examples:
  inaproto plan paring --topology fat-tree:6 --programmable "e0.* e1.* a0.0 a1.0" \\
      --workers 20 --rate 5 --svg tree.svg
  inaproto plan paring --topology network.json --workers 10 --mode exact --json -
  inaproto plan paring --topology fat-tree:4 --workers 7 --rate 3 --fee "*=2" --budget 4
  inaproto plan paring --topology fat-tree:4 --workers 7 --capacity unbounded \\
      --memory "*=10MB" --gradient 100MB        # P4 switches: fast, with little memory

\b
Modes: fast reaches the highest rate, with little more traffic than the least; exact has the least, or says
how far it may be off; printed is the paper's algorithm. docs/planning.md explains what they do.

Exit status: 0, or 1 if there is no such plan (the reason is said), 2 if options or files are wrong.
"""


class _Value(click.ParamType[Any]):
    """What ``parse`` makes of the text; its ``ConfigError`` is the refusal."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def parse_bytes(text: str) -> int:
    """``1627MB``, ``1.5GB``, ``64MiB``. Raises ``ConfigError``."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,12})?)\s*([kKMGT]?i?B?)", text.strip())
    unit = None if found is None else (_UNITS | _UNITS_MORE).get(found[2].upper())
    if found is None or unit is None:
        raise ConfigError(f"{text!r}: bytes, such as 1627MB, 1.5GB or 64MiB")
    return int(Fraction(found[1]) * unit)


def _capacity(text: str) -> Any:
    from inaproto_controller.planning.paring.exact_numbers import parse_capacity

    return parse_capacity(text)


def parse_fraction(text: str) -> Fraction:
    """``5``, ``2.5``, ``10/3``; more than 0. Raises ``ConfigError``."""
    from inaproto_controller.planning.paring.exact_numbers import BOUNDS, parse_exact

    found = parse_exact(text)
    if not found:
        raise ConfigError(f"{text[:40]!r}: a number above 0, such as 5, 2.5 or 10/3, {BOUNDS}")
    return found


def _budget(text: str) -> Fraction:
    return Fraction(0) if text.strip("0") == "" else parse_fraction(text)


def _assigned(parse: Callable[[str], Any]) -> Callable[[str], tuple[str, Any]]:
    def parsed(text: str) -> tuple[str, Any]:
        names, equals, value = text.rpartition("=")
        if not equals or not names.strip():
            raise ConfigError(f"{text!r}: switches, =, and what each has, such as 'e0.* a0.0=3'")
        return names.strip(), parse(value.strip())

    return parsed


_GBIT: Final = "GBIT/S"
_FAT_TREE: Final = "fat-tree:"


@click.command(short_help="Servers and a tree for a job on any network (PARING).", epilog=_EPILOG)
@click.option("--topology", required=True, metavar="fat-tree:K|FILE", help="K-port switches, or a file.")
@click.option("--workers", required=True, type=click.IntRange(1, 1 << 16), help="Of the job, without the PS.")
@click.option(
    "--gradient",
    type=_Value("SIZE", parse_bytes),
    default="100MB",
    show_default=True,
    help="That each worker sends in an iteration.",
)
@click.option(
    "--rate",
    type=_Value(_GBIT, parse_fraction),
    default="10",
    show_default=True,
    help="That a worker sends at most.",
)
@click.option("--programmable", metavar="NAMES", help="Switches of a fat tree that add up.  [default: all]")
@click.option(
    "--capacity",
    type=_Value(_GBIT, lambda text: (_capacity(text),)),
    help="Of adding up, of these switches; 'unbounded' for P4.  [default: 10]",
)
@click.option(
    "--server-capacity",
    type=_Value(_GBIT, lambda text: (_capacity(text),)),
    default="10",
    show_default=True,
    help="Of a server as parameter server (PS).",
)
@click.option(
    "--worker-capacity",
    type=_Value(_GBIT, lambda text: (_capacity(text),)),
    default="0",
    show_default=True,
    help="Of workers that add up, too; --mode printed only.",
)
@click.option(
    "--mode",
    type=click.Choice(["fast", "exact", "printed"]),
    default="fast",
    show_default=True,
    help="Which planner.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1),
    default=60.0,
    show_default=True,
    help="That --mode exact may take.",
)
@click.option(
    "--beta",
    type=_Value("RATIO", parse_fraction),
    default="3/2",
    show_default=True,
    help="By how much --mode printed exceeds degrees.",
)
@click.option(
    "--accounting",
    type=click.Choice(["strict", "paper"]),
    default="strict",
    show_default=True,
    help="paper: one input of a switch is free.",
)
@click.option("--coarse", is_flag=True, help="A switch adds up all that passes it, or nothing.")
@click.option(
    "--busy", metavar="NAMES", multiple=True, help="Servers that are taken: h0 h4. May be repeated."
)
@click.option("--ps", metavar="NAME", help="The server that is to be the PS.")
@click.option(
    "--servers", type=click.IntRange(1, 64), default=1, show_default=True, help="PSs, each of a part."
)
@click.option(
    "--fee",
    "fees",
    multiple=True,
    type=_Value("NAMES=LINKS", _assigned(parse_fraction)),
    help="For using each of these switches.",
)
@click.option("--budget", type=_Value("LINKS", _budget), help="Of all fees at most.")
@click.option(
    "--memory",
    multiple=True,
    type=_Value("NAMES=SIZE", _assigned(parse_bytes)),
    help="Of each of these switches, for gradients.",
)
@click.option(
    "--json", "json_file", type=ReportFile(), metavar="FILE", help="All of it as JSON; - for stdout."
)
@click.option("--svg", "svg_file", type=ReportFile(), metavar="FILE", help="The tree, drawn on the topology.")
def paring(**options: Any) -> None:
    """Place a job's workers and parameter server, and say who sends to whom.

    The tree has the highest sending rate that the capacities of switches and servers allow, and of such trees
    few links' traffic. A request that cannot be met is answered with what stands in its way.
    """
    guarded(lambda: _paring(**options))


plan = WholeGroup(
    "plan",
    commands=[paring],
    short_help="Servers and aggregation trees for one job.",
    help="Plan a single job on a network: where it runs, and who sums what.",
)


def _paring(*, json_file: str | None, svg_file: str | None, **options: Any) -> None:
    from inaproto_controller.plan_command.lines import lines
    from inaproto_controller.planning.paring.admission import Tenants
    from inaproto_controller.planning.paring.model import Accounting, Task
    from inaproto_controller.planning.paring.planner import Mode

    if options["topology"].startswith(_FAT_TREE) and options["capacity"] is None:
        options["capacity"] = (CAPACITY,)
    named = _Named.of(options["topology"], options)
    mode = Mode(options["mode"])
    if options["worker_capacity"][0] != 0 and mode is not Mode.PRINTED:
        raise ConfigError("--worker-capacity: only --mode printed lets workers add up")
    fees = named.by_switch(options["fees"])
    if options["budget"] is not None and not fees:
        raise ConfigError("--budget limits fees: say them with --fee")
    if fees and options["coarse"]:
        raise ConfigError("--coarse: trees for it are planned without fees")
    if options["beta"] < 1:
        raise ConfigError("--beta: 1 or more")
    task = Task(
        options["workers"],
        _least(options["gradient"], options["servers"]),
        options["rate"],
        options["worker_capacity"][0],
        Accounting(options["accounting"]),
    )
    tenants = Tenants(
        named.network,
        named.by_switch(options["memory"]),
        others=frozenset(server for names in options["busy"] for server in named.servers(names)),
    )
    given: dict[str, Any] = {
        "mode": mode,
        "beta": options["beta"],
        "seconds": options["seconds"],
        "fees": fees,
        "budget": options["budget"],
        "is_coarse": options["coarse"],
    }
    if options["ps"] is not None:
        given["ps"] = named.server(options["ps"])
        if given["ps"] in tenants.busy:
            raise ConfigError(f"--ps {options['ps']}: it is --busy")
    asked = {name: _written(value) for name, value in options.items() if value not in (None, (), "")}
    with _ended_by_ctrl_c():
        answer = tenants.admitted("job", task, servers=options["servers"], **given)
    if isinstance(answer, Infeasible):
        if json_file is not None:
            from inaproto_controller.plan_command.document import refusal

            write_report(refusal(answer, asked), json_file)
        raise click.ClickException(f"no plan: {answer}")
    admitted = answer.running["job"]
    try:  # the plan is not lost to a disk that is full, nor its drawing to a reader that has gone
        if svg_file is not None:
            write_text(Path(svg_file), _drawing(admitted, options))
    finally:
        with unread():
            for line in lines(admitted):
                click.echo(line, err=json_file == "-")
            if json_file is not None:
                from inaproto_controller.plan_command.document import document

                write_report(document(admitted, asked), json_file)
    if svg_file is not None:
        with unread():
            click.echo(f"wrote {svg_file}", err=json_file == "-")


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """At once: HiGHS, of exact mode, comes back for no ``KeyboardInterrupt``. Nothing is to be cleared up."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where Ctrl-C is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _least(nbytes: int, servers: int) -> int:
    if nbytes < servers:
        raise ConfigError(f"--gradient {nbytes}: at least a byte for each of {servers} parameter servers")
    return nbytes


def _written(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple | list):
        written = [_written(one) for one in value]
        return written[0] if len(written) == 1 else written
    return "unbounded" if value is None else value


def _drawing(admitted: Any, options: Mapping[str, Any]) -> str:
    """Drawing of the first of several parts."""
    from inaproto_controller.plan_command.drawing import drawn
    from inaproto_controller.plan_command.lines import size

    plan = admitted.parts[0].plan
    facts = f"{float(plan.rate):.4g} Gbit/s, {plan.hops} links, {size(plan.traffic_bytes)} an iteration"
    if len(admitted.parts) > 1:
        facts += f"; part 1 of {len(admitted.parts)}"
    title = f"PARING, {options['mode']}: {options['workers']} workers on {options['topology']}"
    return drawn(plan.network, plan.tree, plan.measures, title=title, facts=facts)


class _Named:
    """A network, and how its nodes are called."""

    def __init__(self, network: Any, switches: Callable[[str], Sequence[int]]) -> None:
        self.network = network
        self._switches = switches
        self._servers = {name: node for node, name in enumerate(network.topology.host_names)}

    @classmethod
    def of(cls, topology: str, options: Mapping[str, Any]) -> _Named:
        if topology.startswith(_FAT_TREE):
            return cls._fat_tree(topology.removeprefix(_FAT_TREE), options)
        for name in ("programmable", "capacity"):
            if options[name] is not None:
                raise ConfigError(
                    f"--{name} is for fat trees: in a file, each switch that adds up has a capacity"
                )
        from inaproto_controller.planning.paring.network_file import read_network

        network = read_network(Path(topology), server=options["server_capacity"][0])
        hosts, nodes = network.topology.hosts, network.topology.nodes
        by_name = {network.topology.name(node): node for node in range(hosts, nodes)}

        def switches(names: str) -> list[int]:
            if names == "*":
                return list(by_name.values())
            return [_known(by_name, name, "switch") for name in _each(names, by_name)]

        return cls(network, switches)

    @classmethod
    def _fat_tree(cls, text: str, options: Mapping[str, Any]) -> _Named:
        from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named

        degree = int(text) if re.fullmatch(r"\d{1,3}", text) else 0
        if degree < 2 or degree % 2 or degree > DEGREE_MAX:
            raise ConfigError(f"--topology fat-tree:{text}: an even number of ports, 2 to {DEGREE_MAX}")
        every = "e*.* a*.* c*"
        mask = every if options["programmable"] is None else options["programmable"]
        network = fat_tree_network(degree, {mask: options["capacity"][0]}, capacity=Fraction(0))
        server = options["server_capacity"][0]
        hosts = network.topology.hosts
        network = type(network)(
            network.topology,
            tuple(server if node < hosts else one for node, one in enumerate(network.capacities)),
        )
        return cls(network, lambda names: switches_named(degree, every if names == "*" else names))

    def by_switch(self, given: Sequence[tuple[str, Any]]) -> dict[int, Any]:
        """Later ones count."""
        return {node: value for names, value in given for node in self._switches(names)}

    def servers(self, names: str) -> list[int]:
        return [self.server(name) for name in _each(names, self._servers)]

    def server(self, name: str) -> int:
        return _known(self._servers, name, "server")


def _each(names: str, by_name: Mapping[str, int]) -> Sequence[str]:
    """Names with blanks between them, or one that has blanks in it."""
    return [names] if names in by_name else names.split()


def _known(by_name: Mapping[str, int], name: str, what: str) -> int:
    if name not in by_name:
        raise ConfigError(f"{what} {name}: there is none of that name")
    return by_name[name]
