"""``inaproto bench allreduce``: all-reduces through real daemons, every element checked.

Starts a switch, host daemons and one worker process per host on this machine. The frames go over
UNIX sockets between processes that share the cores with the workers, so a run proves that results
are *correct* (also under ``--weather``), and compares revisions of this code on one machine; it says
nothing about the speed of a network (data-path measurements of the core alone:
``inaproto bench accelerator``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inaproto.daemon.settings.config import HostSettings
from inaproto.option_types import FiniteRange, ReportFile
from inaproto_hil.bench import comparison, report
from inaproto_hil.bench.allreduce.memory import FABRICS, HOSTS_MAX, MemoryConfig, run_memory
from inaproto_hil.bench.allreduce.ranks import Ranks
from inaproto_hil.bench.allreduce.ring_traffic import RingTraffic, by_ring
from inaproto_hil.bench.allreduce.worker import WorkerPlan
from inaproto_hil.bench.comparison import turns
from inaproto_hil.bench.pattern import DTYPES, OPS
from inaproto_hil.ranks.predictable import RANKS_MAX
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterConfig, ClusterError, LocalCluster, signals_as_interrupt

DEFAULT_DTYPES = ("float32", "bfloat16", "int32")
ELEMENT_BYTES_MAX = max(dtype.itemsize for dtype in DTYPES.values())


@dataclass(frozen=True, slots=True)
class Config:
    hosts: int
    begin: int
    end: int
    factor: int
    dtypes: tuple[str, ...]
    op: str
    iterations: int
    warmup: int
    window_messages: int
    message_packets: int
    mtu: int
    weather: str
    seed: int
    timeout_s: float
    paths: tuple[str, ...] = ("auto",)
    rings: int = 1
    """NICs of each host, hence host daemons and parallel rings."""
    accelerator: str = "software"
    """Of the switch, as ``inaproto switch --accelerator`` takes it."""
    queued: int = 1
    """All-reduces that a rank calls before it waits for the first of them."""
    sizes: tuple[int, ...] = ()
    """Bytes; just these, if any, instead of those from ``begin`` to ``end``."""

    def plan(self) -> WorkerPlan:
        rows = [
            (dtype, size // DTYPES[dtype].itemsize)
            for dtype in self.dtypes
            for size in self.sizes or report.sizes(self.begin, self.end, self.factor)
        ]
        return WorkerPlan(
            "bench",
            self.hosts,
            self.op,
            rows,
            self.warmup,
            self.iterations,
            self.timeout_s,
            list(self.paths),
            self.queued,
        )

    def cluster(self) -> ClusterConfig:
        host_options = {
            "--mtu": self.mtu,
            "--window-messages": self.window_messages,
            "--message-packets": self.message_packets,
        }
        return ClusterConfig(
            hosts=self.hosts * self.rings,
            weather=self.weather,
            seed=self.seed,
            switch_options=("--accelerator", self.accelerator),
            host_options=tuple(text for pair in host_options.items() for text in map(str, pair)),
        )


def measure(
    config: Config, on_row: Callable[[report.Row], None], on_operation: Callable[[str], None]
) -> tuple[list[report.Row], dict[str, Any]]:
    """Run the benchmark; returns its rows and the counters of the switch and the hosts' NICs."""
    plan = config.plan()
    rows = []
    with LocalCluster(config.cluster()) as cluster:
        ranks = Ranks(cluster, plan, config.rings)
        for number, (dtype, count) in enumerate(plan.rows):
            spent_s = dict.fromkeys(plan.paths, 0.0)
            began_s, measured = 0.0, ""
            for iteration in range(-plan.warmup, plan.iterations):
                for path in turns(plan.paths, iteration):
                    ranks.collect("at", f"iteration {iteration} of {count} x {dtype} ({path})")
                    now_s = sum(daemon.cpu_s() for daemon in cluster.daemons)
                    if measured:
                        spent_s[measured] += now_s - began_s
                    began_s, measured = now_s, path if iteration >= 0 else ""
                    ranks.go()
                    on_operation(f"{dtype} {count * DTYPES[dtype].itemsize} B")
            done = ranks.collect("row", f"the end of {count} x {dtype} (row {number + 1})")
            spent_s[measured] += sum(daemon.cpu_s() for daemon in cluster.daemons) - began_s
            cluster.check()
            for path in plan.paths:
                of_path = [rank["done"][path] for rank in done]
                rows.append(_row(plan, path, dtype, count, of_path, spent_s[path] / plan.queued))
                on_row(rows[-1])
        hosts = {host.name: cluster.host_status(index)["nic"] for index, host in enumerate(cluster.hosts)}
        traffic = by_ring(list(hosts.values()), config.rings)
        counters = {"rings": [asdict(ring) for ring in traffic]}
        return rows, {"switch": cluster.switch_status(), "nics": hosts} | counters


def _row(
    plan: WorkerPlan,
    asked: str,
    dtype: str,
    count: int,
    done: Sequence[dict[str, Any]],
    daemons_cpu_s: float,
) -> report.Row:
    samples = zip(*(rank["samples_s"] for rank in done), strict=True)
    return report.Row(
        size_bytes=count * DTYPES[dtype].itemsize,
        count=count,
        dtype=dtype,
        op=plan.op,
        ranks=plan.ranks,
        samples_s=tuple(max(sample) for sample in samples),
        wrong=sum(rank["wrong"] for rank in done),
        cpu_s=daemons_cpu_s + sum(rank["cpu_s"] for rank in done),
        wrong_example=next((rank["wrong_example"] for rank in done if rank["wrong_example"]), ""),
        asked=asked,
        path="+".join(sorted({path for rank in done for path in rank["paths"]})),
    )


def _size(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return report.parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _sizes(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    found = () if value is None else tuple(_size(context, parameter, text) for text in value.split(","))
    if found and min(found) < ELEMENT_BYTES_MAX:
        raise click.BadParameter(f"{min(found)} is less than one element: give at least {ELEMENT_BYTES_MAX}")
    return found


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _host_default(field: str) -> Any:
    return HostSettings.model_fields[field].default


@click.command(
    epilog="Examples: inaproto bench allreduce --hosts 4 --weather drop=0.01; "
    "inaproto bench allreduce --topology fat-tree:4 --hosts 16 --fabric memory --json -"
)
@click.option(
    "--fabric",
    type=click.Choice(FABRICS),
    default=FABRICS[0],
    show_default=True,
    help="daemons: real ones over UNIX sockets. memory: simulated hosts and switches in virtual time.",
)
@click.option(
    "--topology",
    metavar="KIND:N",
    help="With --fabric memory: fat-tree:K (K even) or leaf-spine:RACKS.  [default: one switch]",
)
@click.option(
    "--hosts", type=click.IntRange(2, RANKS_MAX), default=4, show_default=True, help="Hosts; one rank each."
)
@click.option(
    "--sizes", metavar="S,S,...", callback=_sizes, help="Just these, instead of --begin, --end and --factor."
)
@click.option(
    "--begin",
    callback=_size,
    default="64K",
    help="First size, bytes (K, M, G: 1024).  [default: 64K; memory: 16K]",
)
@click.option("--end", callback=_size, default="16M", help="Last size.  [default: 16M; memory: 256K]")
@click.option("--factor", type=click.IntRange(min=2), default=2, show_default=True, help="From size to size.")
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice([*DTYPES, "all"]), default=DEFAULT_DTYPES,
    show_default=True, help="Element type; may be given several times.",
)  # fmt: skip
@click.option("--op", type=click.Choice(OPS), default="sum", show_default=True, help="Reduction.")
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=5,
    help="Measured, per row.  [default: 5; memory: 1, for each takes as long as the other]",
)
@click.option(
    "--warmup", type=click.IntRange(min=0), default=1, help="Not measured, per row.  [default: 1; memory: 0]"
)
@click.option(
    "--window",
    type=int,
    default=_host_default("window_messages"),
    show_default=True,
    help="Messages in flight.",
)
@click.option(
    "--message-packets",
    type=int,
    default=_host_default("message_packets"),
    show_default=True,
    help="Packets per message.",
)
@click.option(
    "--mtu", type=int, default=_host_default("mtu"), show_default=True, help="Payload bytes per packet."
)
@click.option(
    "--weather", default="", help="Of the switch's ports, e.g. drop=0.01,duplicate=0.001,reorder=0.01."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the weather.")
@click.option(
    "--accelerator",
    default="software",
    show_default=True,
    help="What sums in the switch; rtl: the hardware design in simulation.",
)
@click.option(
    "--timeout",
    type=FiniteRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds one operation may take.",
)
@click.option(
    "--path",
    type=click.Choice(comparison.PATHS),
    default="auto",
    show_default=True,
    help="auto: the switch. chain, ring: the hosts sum themselves.",
)
@click.option(
    "--rings",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="NICs of each host: parallel rings, each with a slice of the tensor.",
)
@click.option(
    "--queued",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="All-reduces that a rank calls before it waits for the first; a row is of one of them.",
)
@click.option("--compare", is_flag=True, help="All paths in turns, and how many times longer the hosts take.")
@click.option(
    "--json",
    "json_path",
    type=ReportFile(),
    metavar="PATH",
    help="Write the report here; - is stdout (the table: stderr).",
)
@click.pass_context
def allreduce(
    context: click.Context,
    *,
    fabric: str,
    topology: str | None,
    sizes: tuple[int, ...],
    hosts: int,
    begin: int,
    end: int,
    factor: int,
    dtypes: tuple[str, ...],
    op: str,
    iterations: int,
    warmup: int,
    window: int,
    message_packets: int,
    mtu: int,
    weather: str,
    seed: int,
    accelerator: str,
    timeout: float,
    path: str,
    rings: int,
    queued: int,
    compare: bool,
    json_path: str | None,
) -> None:
    """All-reduces through a switch and host daemons on this machine, every element checked.

    The columns are those of nccl-tests. The time of an operation is that of its slowest rank; a row
    has the median. cpu(s/GB) counts all processes, daemons included.

    Loopback runs prove that results are right, never how fast a network would be: all processes
    share this machine's cores. Exits with 1 when any element is wrong. The values are small integers, whose
    sums are exact in every element type and order of additions: the check is as strict on every --path.

    With --rings each host has so many NICs, a host daemon for each; the report says what the NICs of each
    ring have sent and received.

    With --queued K each round is K all-reduces that are under way together, as the buckets of a training
    step are; times and CPU are divided by K.

    With --compare each round is one all-reduce on each path, and the times of a round are compared: the
    median of their ratios over --iterations rounds, and the least and the greatest.

    With --fabric memory nothing is started: hosts, links and a tree of switches are simulated around
    the same protocol code, without weather, and times are virtual, those of 100 Gb/s links. Such a run
    also counts what each link carries, first copies and all else apart, and compares it with the
    arithmetic of the tree: one copy up and one down each link, however many hosts are behind it. A
    fat-tree:K has K pods; its active links are a tree rooted at one core, the other links are on standby.
    Exits with 1 also when that differs.
    """
    is_memory = fabric == "memory"
    if compare and _is_given(context, "path"):
        raise click.UsageError("--compare runs all paths: leave --path out")
    if is_memory and (compare or path != "auto"):
        raise click.UsageError("--path and --compare are for --fabric daemons")
    if is_memory and (rings > 1 or queued > 1):
        raise click.UsageError("--rings and --queued are for --fabric daemons")
    if not is_memory and topology is not None:
        raise click.UsageError("--topology is for --fabric memory")
    if is_memory:
        if weather or _is_given(context, "timeout") or _is_given(context, "accelerator"):
            raise click.UsageError(
                "--fabric memory has no weather, no timeout and its own accelerator: see inaproto soak"
            )
        if hosts > HOSTS_MAX:
            raise click.UsageError(f"--fabric memory has at most {HOSTS_MAX} hosts")
        begin = begin if _is_given(context, "begin") else min(16 << 10, end)
        end = end if _is_given(context, "end") else max(256 << 10, begin)
        iterations = iterations if _is_given(context, "iterations") else 1
        warmup = warmup if _is_given(context, "warmup") else 0
    if begin > end:
        raise click.UsageError(f"--begin {begin} is above --end {end}")
    if begin < ELEMENT_BYTES_MAX:
        raise click.UsageError(f"--begin {begin} is less than one element: give at least {ELEMENT_BYTES_MAX}")
    kinds = tuple(DTYPES) if "all" in dtypes else tuple(dict.fromkeys(dtypes))
    if is_memory:
        in_memory = MemoryConfig(
            hosts=hosts,
            topology=topology or "",
            sizes=sizes or tuple(report.sizes(begin, end, factor)),
            dtypes=kinds,
            op=op,
            iterations=iterations,
            warmup=warmup,
            window_messages=window,
            message_packets=message_packets,
            mtu=mtu,
            seed=seed,
        )
        sys.exit(run_memory(in_memory, json_path))
    config = Config(
        hosts=hosts,
        begin=begin,
        end=end,
        factor=factor,
        dtypes=kinds,
        op=op,
        iterations=iterations,
        warmup=warmup,
        window_messages=window,
        message_packets=message_packets,
        mtu=mtu,
        weather=weather,
        seed=seed,
        timeout_s=timeout,
        paths=comparison.PATHS if compare else (path,),
        rings=rings,
        queued=queued,
        sizes=sizes,
        accelerator=accelerator,
    )
    env = environment.describe()
    table = sys.stderr if json_path == "-" else sys.stdout
    try:
        with signals_as_interrupt():
            rows, counters = _with_progress(config, env, table)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    ratios = list(comparison.compared(rows))
    result = report.document(config=asdict(config), env=env, rows=rows) | counters
    result["ratios"] = [ratio.as_dict() for ratio in ratios]
    text = json.dumps(result, indent=2)
    if json_path == "-":
        print(text)
    elif json_path is not None:
        Path(json_path).write_text(text + "\n")
    for ratio in ratios:
        print(ratio.line(), file=table)
    if rings > 1:
        for ring in counters["rings"]:
            print(RingTraffic(**ring).line(), file=table)
    wrong = sum(row.wrong for row in rows)
    print(f"# wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}", file=table)
    for row in rows:
        if row.wrong:
            print(f"# {row.dtype} {row.size_bytes} B: {row.wrong_example}", file=table)
    sys.exit(1 if wrong else 0)


def _with_progress(
    config: Config, env: dict[str, Any], table: Any
) -> tuple[list[report.Row], dict[str, Any]]:
    bound = report.bounds(mtu=config.mtu, ranks=config.hosts)
    print(
        f"# inaproto bench allreduce: {config.hosts} hosts, "
        f"{config.rings} ring{'s' * (config.rings > 1)}, {config.queued} queued, "
        f"window {config.window_messages} messages of "
        f"{config.message_packets} packets of {config.mtu} B, weather: {config.weather or 'clear'}\n"
        f"# {env['cpu']}, {env['cores_usable']} cores shared by all: checks results, not a network's speed\n"
        f"# bound: {100 * bound['ina']:.0f} % of a line (payload/frame); "
        f"a ring of the hosts: {100 * bound['ring']:.0f} %",
        file=table,
    )
    print(report.header(), file=table, flush=True)
    operations = len(config.plan().rows) * (config.warmup + config.iterations) * len(config.paths)
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting daemons", total=operations)

        def show(row: report.Row) -> None:
            if table.isatty() and console.is_terminal:
                progress.console.print(report.table_line(row), highlight=False, markup=False, soft_wrap=True)
            else:
                print(report.table_line(row), file=table, flush=True)

        return measure(config, show, lambda what: progress.update(bar, advance=1, description=what))
