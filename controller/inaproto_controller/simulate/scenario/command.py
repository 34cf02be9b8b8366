"""``inaproto simulate``: what a cluster's jobs gain from INA, by one scenario file."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported
from inaproto.option_types import ReportFile, write_text
from inaproto.reader_gone import unread

EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_STOPPED: Final = 130

_EPILOG: Final = """
\b
The smallest scenario:
  [cluster]
  down = [4, 4, 4]         # 4 hosts in a rack, 4 racks in a pod, 4 pods
  up = [1, 2, 2]           # links up of a host, a rack and a pod
  [speeds]
  preset = "sharing"       # 100 Gbit/s, 1.5 times that with INA
  [stream]
  count = 60               # jobs of 2, 4 or 8 hosts
  hosts = { 2 = 1, 4 = 1, 8 = 1 }
  [[compare]]              # hosts placed as they are free
  placement = "first"
  trees = "exclusive"      # a tree is one job's until that ends
  [[compare]]              # against hosts placed close together
  placement = "least-fragments"
  trees = "exclusive"

\b
Further: [speeds], [migration], [arrivals], [models.NAME], [[jobs]], seeds, until.
docs/planning.md explains all of them, and how to read the result;
examples/cluster.toml has them in use.

\b
Examples:
  inaproto simulate cluster.toml
  inaproto simulate cluster.toml --seeds 10 --report report.html
  inaproto simulate cluster.toml --json - | jq '.variants[].measures.score'
  inaproto simulate cluster.toml --timeline job.svg --timeline-jobs 3,7 \\
      --timeline-window 10s:12s

Exit status: 0, or 1 if something outside failed, 2 if scenario or options are wrong, 130 after Ctrl-C.
"""


class _Window(click.ParamType[tuple[float, float]]):
    """``A:B``, each in seconds (``2``, ``2s``) or milliseconds (``500ms``)."""

    name = "A:B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        first, colon, last = str(value).partition(":")
        try:
            begin, end = _seconds(first), _seconds(last)
        except ValueError:
            begin, end = 0.0, -1.0
        if not colon or not 0 <= begin < end < float("inf"):
            self.fail(f"{value!r}: write begin and end, such as 0:2s or 500ms:750ms", param, ctx)
        return begin, end


def _seconds(text: str) -> float:
    if text.endswith("ms"):
        return float(text.removesuffix("ms")) / 1000
    return float(text.removesuffix("s"))


class _Numbers(click.ParamType[tuple[int, ...]]):
    name = "N,N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r}: write job numbers, such as 3,7", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


@click.command(short_help="What a cluster's jobs gain from INA.", epilog=_EPILOG)
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--json",
    "json_file",
    type=ReportFile(),
    metavar="FILE",
    help="All of it as JSON; with - to stdout, and the table to stderr.",
)
@click.option(
    "--report", "page_file", type=ReportFile(), metavar="FILE", help="One HTML page, with pictures."
)
@click.option(
    "--timeline",
    "timeline_file",
    type=ReportFile(),
    metavar="FILE",
    help="SVG: who used INA when (first seed).",
)
@click.option(
    "--timeline-jobs",
    type=_Numbers(),
    help="Whose: numbers from 0, by arrival.  [default: up to 8 that share]",
)
@click.option(
    "--timeline-window", type=_Window(), help="When: 0:2s, 500ms:750ms.  [default: two of the longest steps]"
)
@click.option(
    "--parquet",
    "parquet_file",
    type=ReportFile(),
    metavar="FILE",
    help="All jobs of all runs, a row each; takes pip install 'inaproto[parquet]'.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), metavar="N", help="Seeds 0 to N-1, whatever the scenario says."
)
@click.option(
    "--jobs", type=click.IntRange(1, 4096), metavar="N", help="Worker processes.  [default: all cores]"
)
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="What runs it."
)
def simulate(scenario: Path, **options: Any) -> None:
    """Simulate the cluster of a SCENARIO file, and say what its jobs gain from in-network aggregation.

    A scenario is a TOML file: a fat tree, speeds, jobs, and one or more ways to run them (placement of hosts,
    aggregation trees, sharing). Each way runs with each seed; the table compares them. All jobs' operations
    are simulated, one by one; what is simulated and what not: docs/planning.md.
    """
    _guarded(lambda: _simulate(scenario, **options))


def _simulate(
    path: Path,
    *,
    json_file: str | None,
    page_file: str | None,
    timeline_file: str | None,
    timeline_jobs: tuple[int, ...] | None,
    timeline_window: tuple[float, float] | None,
    parquet_file: str | None,
    seeds: int | None,
    jobs: int | None,
    engine: str,
) -> None:
    from inaproto_controller.cluster.compiled import IS_COMPILED
    from inaproto_controller.simulate.scenario.document import document
    from inaproto_controller.simulate.scenario.runs import run_all
    from inaproto_controller.simulate.scenario.scenario import load_scenario

    files = _files(path, json=json_file, report=page_file, timeline=timeline_file, parquet=parquet_file)
    if timeline_file is None and (timeline_jobs is not None or timeline_window is not None):
        raise click.UsageError("--timeline-jobs and --timeline-window are for --timeline FILE")
    if parquet_file is not None:
        from inaproto_controller.simulate.scenario.parquet import require_parquet

        require_parquet()
    loaded = load_scenario(path)
    chosen = loaded.file.seed_list() if seeds is None else tuple(range(seeds))
    if timeline_jobs is not None:
        from inaproto_controller.simulate.scenario.timeline import require_jobs

        require_jobs(timeline_jobs, len(loaded.workload(chosen[0]).requests))
    if not IS_COMPILED:
        click.echo(
            "inaproto: Numba is not installed, so this is up to fifty times as slow; mend it with: "
            "pip install 'inaproto[planning]'",
            err=True,
        )
    with _progress("simulating") as progress:
        runs = run_all(
            loaded,
            chosen,
            jobs=jobs,
            engine=engine,
            with_all_jobs=parquet_file is not None,
            on_progress=progress,
        )
    found = document(loaded, chosen, runs)
    try:  # what was simulated is not lost to a reader that has gone, nor to a disk that is full
        for name, file in files.items():
            if name == "json":
                write_text(Path(file), _json(found))
            elif name == "report":
                from inaproto_controller.simulate.scenario.page import page

                write_text(Path(file), page(found))
            elif name == "parquet":
                from inaproto_controller.simulate.scenario.parquet import write_parquet

                write_parquet(Path(file), loaded, runs)
            else:
                from inaproto_controller.simulate.scenario.timeline import draw_timeline

                with _progress("drawing the timeline"):
                    drawing = draw_timeline(loaded, chosen[0], jobs=timeline_jobs, window=timeline_window)
                write_text(Path(file), drawing)
    finally:
        with unread():
            _tell(found, to_stdout=json_file == "-")
    with unread():
        for file in files.values():
            click.echo(f"wrote {file}", err=json_file == "-")


def _files(scenario: Path, **asked: str | None) -> dict[str, str]:
    """Those to be written, by option; the timeline, which may be refused, comes last."""
    order = ("json", "report", "parquet", "timeline")
    files: dict[str, str] = {}
    there = {scenario.resolve(): "the scenario"}
    for name in order:
        file = asked[name]
        if file is None or (file == "-" and name == "json"):
            continue
        if file == "-":
            raise click.UsageError(f"--{name}: give a file; only --json can go to stdout")
        place = Path(file).resolve()
        if place in there and (not place.exists() or place.is_file()):  # /dev/null takes all of them
            raise click.UsageError(f"--{name}: {file} is {there[place]}, too; give another file")
        there[place], files[name] = f"that of --{name}", file
    return files


def _tell(found: dict[str, Any], *, to_stdout: bool) -> None:
    """The table; before it the JSON, with the table on stderr."""
    from rich.console import Console

    from inaproto_controller.simulate.scenario.table import show

    if to_stdout:
        click.echo(_json(found), nl=False)
    console = Console(stderr=to_stdout)
    if not console.is_terminal:
        console.width = max(console.width, 160)
    show(console, found)


def _json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, which goes when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _guarded(command: Callable[[], None]) -> None:
    """Errors that a person can act on become messages; SIGTERM ends it as Ctrl-C does, workers included."""
    before = signal.signal(signal.SIGTERM, _stop)
    status = 0
    try:
        command()
    except (InvariantBroken, LocalMisuse):
        raise
    except InaprotoError as error:
        for line in str(error).splitlines():
            click.echo(f"inaproto: {line}", err=True)
        status = EXIT_WRONG if isinstance(error, ConfigError | Unsupported) else EXIT_FAILED
    except OSError as error:
        click.echo(f"inaproto: {error}", err=True)
        status = EXIT_FAILED
    except KeyboardInterrupt:
        click.echo("inaproto: stopped", err=True)
        status = EXIT_STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)
    if status:
        sys.exit(status)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
