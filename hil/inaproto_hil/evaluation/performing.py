"""The runs behind a paper's figures, on all cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inaproto.task_engines import open_engine

RunT = TypeVar("RunT")
FoundT = TypeVar("FoundT")
_LINE_EVERY_S: Final = 60.0


def perform_all(
    perform: Callable[[RunT], tuple[RunT, FoundT]],
    runs: Sequence[RunT],
    jobs: int | None,
    engine: str,
    console: Console,
    *,
    compile_once: Callable[[], None],
) -> dict[RunT, FoundT]:
    """What each found. On a terminal with a bar, elsewhere with a line a minute."""
    count = min(jobs or len(os.sched_getaffinity(0)), max(1, len(runs)))
    if engine == "local":
        with console.status("compiling") if console.is_terminal else nullcontext():
            compile_once()  # else every process would make the same compiled code
    opened = open_engine(engine, count)
    found: dict[RunT, FoundT] = {}
    bar = Progress(
        TextColumn("reproduce"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar, closing(opened.outcomes(perform, runs)) as outcomes:
        task = bar.add_task("", total=len(runs))
        line_at = time.monotonic()
        for run, outcome in outcomes:
            found[run] = outcome
            bar.advance(task)
            now = time.monotonic()
            if not console.is_terminal and now - line_at >= _LINE_EVERY_S:
                line_at = now
                console.print(f"reproduce: {len(found)} of {len(runs)} runs")
    return found
