"""The command ``inaproto bench sharp``.

Its ranks are processes of this machine. The library is one for tests, or that of a site with devices that
reach each other from one machine; what it shows is the adapter's own cost, and nothing of any network.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from inaproto.errors import ConfigError, Unsupported
from inaproto.option_types import ReportFile, write_report
from inaproto_adapters.sharp.abi import compiler, hash_of
from inaproto_adapters.sharp.library import load
from inaproto_hil.bench.report import parse_size
from inaproto_hil.rigs.environment import describe
from inaproto_hil.rigs.sharp_double import build

LOOP: Final = Path(__file__).parent / "loop.c"
SECONDS_MAX: Final = 900.0
BLOCK_BYTES: Final = 32 << 20
"""What a block of all-reduces moves, about, of at most 200 and at least 4."""


@click.command("sharp")
@click.option(
    "--library",
    type=click.Path(exists=True, path_type=Path),
    help="libsharp_coll; by default the double of the source tree, which is no SHARP.",
)
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(1, 16), help="Processes.")
@click.option("--sizes", default="16K,16M", show_default=True, help="Bytes of an all-reduce, by commas.")
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(2, 1000), help="Blocks of each.")
@click.option("--devices", default="", help="Devices of SHARP, as mlx5_0:1.")
@click.option("--json", "json_at", type=ReportFile(), help="Report file; - is stdout.")
def sharp_bench(
    library: Path | None, ranks: int, sizes: str, rounds: int, devices: str, json_at: str | None
) -> None:
    """Time all-reduces through the SHARP adapter beside a bare C loop on the same library.

    Both run in the same processes, on the same context and memory, in blocks that alternate. Rank 0's times
    are shown: medians of blocks, and of what the adapter's block took longer than the loop's next to it.
    """
    try:
        nbytes = [parse_size(text) for text in sizes.split(",")]
        report = measure((library or build()).resolve(), ranks, nbytes, rounds, devices)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (Unsupported, ConfigError, RuntimeError) as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(1)
    Console(stderr=json_at == "-").print(_table(report["rows"]))
    write_report(report, json_at)
    sys.exit(1 if any(row["wrong"] for row in report["rows"]) else 0)


def measure(library: Path, ranks: int, sizes: Sequence[int], rounds: int, devices: str) -> dict[str, Any]:
    """The report. Raises ``Unsupported`` without the library or a C compiler, ``RuntimeError`` where a rank
    fails."""
    load(str(library))
    with tempfile.TemporaryDirectory(prefix="ina-") as folder:
        loop = _build(Path(folder) / "loop.so")
        wish: dict[str, Any] = {
            "library": str(library),
            "loop": str(loop),
            "hub": f"{folder}/hub",
            "size": ranks,
            "key": secrets.token_hex(16),
            "job": secrets.randbits(63),
            "devices": devices,
            "sizes": list(sizes),
            "times": [min(max(BLOCK_BYTES // size, 4), 200) for size in sizes],
            "rounds": rounds,
        }
        found = _run(wish, ranks, folder)
    config = {"ranks": ranks, "rounds": rounds, "devices": devices, "block": wish["times"]}
    return {
        "version": 1,
        "config": config,
        "library": {"path": str(library), "sha256": hash_of(library)},
        "environment": describe(),
        "rows": [
            _row(each, wish["times"][at], sum(its[at]["wrong"] for its in found))
            for at, each in enumerate(found[0])
        ],
    }


def _build(into: Path) -> Path:
    command = [*compiler(), "-O2", "-fPIC", "-shared", "-o", str(into), str(LOOP)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Unsupported("a C compiler", done.stderr.strip()[:500])
    return into


def _run(wish: dict[str, Any], ranks: int, folder: str) -> list[Any]:
    environment = {"SHARP_DOUBLE_AM": f"{folder}/am", **os.environ}
    command = [sys.executable, "-m", "inaproto_hil.bench.sharp.rank"]
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps({**wish, "rank": rank}) + "\n")
            process.stdin.flush()
        said = [process.communicate(timeout=SECONDS_MAX) for process in processes]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the ranks have not ended in {SECONDS_MAX:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, (process, (_, errors)) in enumerate(zip(processes, said, strict=True)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} failed: {errors.strip()[-1500:]}")
    return [json.loads(out) for out, _ in said]


def _row(found: dict[str, Any], times: int, wrong: int) -> dict[str, Any]:
    """The overhead is the median over rounds of the difference of the round's two blocks: what the machine
    does for others changes from round to round, less within one."""
    ours, bare = ([block / 1e3 for block in _blocks(found[name], times)] for name in ("ours", "bare"))
    over = statistics.median([mine - its for mine, its in zip(ours, bare, strict=True)])
    share = statistics.median([mine / its - 1 for mine, its in zip(ours, bare, strict=True)])
    quartiles = {name: [at / 1e3 for at in statistics.quantiles(found[name])] for name in ("ours", "bare")}
    return {
        "bytes": found["bytes"],
        "samples": len(found["ours"]),
        "adapter_us": statistics.median(ours),
        "loop_us": statistics.median(bare),
        "overhead_us": over,
        "overhead_share": share,
        "adapter_quartiles_us": quartiles["ours"],
        "loop_quartiles_us": quartiles["bare"],
        "wrong": wrong,
    }


def _blocks(times_ns: Sequence[int], times: int) -> list[float]:
    """The median of each block."""
    return [statistics.median(times_ns[at : at + times]) for at in range(0, len(times_ns), times)]


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("bytes", "adapter (us)", "C loop (us)", "overhead (us)", "overhead", "#wrong")
    for row in rows:
        figures = (row["adapter_us"], row["loop_us"], row["overhead_us"])
        texts = [f"{figure:.1f}" for figure in figures]
        table.add_row(str(row["bytes"]), *texts, f"{row['overhead_share']:+.1%}", str(row["wrong"]))
    return table
