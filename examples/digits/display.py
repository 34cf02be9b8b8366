"""Progress of a demo run: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

PLAIN_INTERVAL_S = 3.0


@dataclass(frozen=True, slots=True)
class State:
    """What there is to show; None where nothing is known yet."""

    step: int
    steps: int | None
    """None while it is not known when the training ends."""
    loss: float
    train_accuracy: float
    """Share of samples of the last steps that were right, 0..1."""
    latency_ms: float
    """Median all-reduce of the last steps."""
    frames_lost: int | None
    retransmits: int | None
    path: str = ""
    """By whom the gradients are summed; empty where there is one way only."""

    def __str__(self) -> str:
        wire = ""
        if self.frames_lost is not None:
            wire = f"  lost {self.frames_lost}  sent again {self.retransmits}"
        latency = f"{self.latency_ms:.1f} ms"
        summed = f"{latency} by {self.path}" if self.path else f"all-reduce {latency}"
        return f"loss {self.loss:.3f}  accuracy {100 * self.train_accuracy:.1f} %  {summed}{wire}"


class Display(Protocol):
    def stage(self, what: str) -> None:
        """A new part of the run begins."""
        ...

    def note(self, text: str) -> None:
        """Something happened that stays to be read."""
        ...

    def update(self, state: State) -> None: ...


class PlainDisplay:
    """For logs and pipes."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._next = 0.0

    def stage(self, what: str) -> None:
        self.note(what)
        self._next = time.monotonic() + PLAIN_INTERVAL_S

    def note(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:5.1f} s] {text}", flush=True)

    def update(self, state: State) -> None:
        now = time.monotonic()
        if now >= self._next or state.step == state.steps:
            self._next = now + PLAIN_INTERVAL_S
            of = "" if state.steps is None else f"/{state.steps}"
            self.note(f"step {state.step}{of}  {state}")


class LiveDisplay:
    """For a terminal: a bar for each stage, and a line of figures; 80 columns are enough."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description:34}"),
            BarColumn(bar_width=22),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._figures = Text()
        self._task: TaskID | None = None
        self.body = Group(self._progress, self._figures)

    def stage(self, what: str) -> None:
        self.close()
        self._task = self._progress.add_task(what, total=None)

    def note(self, text: str) -> None:
        at = f"[{time.monotonic() - self._start:5.1f} s]"
        self._console.print(f"{at} {text}", markup=False, highlight=False)  # above the bars

    def update(self, state: State) -> None:
        if self._task is not None:
            self._progress.update(self._task, total=state.steps, completed=state.step)
            self._figures.plain = str(state)

    def close(self) -> None:
        """End the stage."""
        if self._task is not None:
            last = self._progress.tasks[-1]
            total = last.total or last.completed or 1
            self._progress.update(self._task, total=total, completed=total)
            self._progress.stop_task(self._task)


@contextmanager
def make_display() -> Iterator[Display]:
    """The display that suits stdout."""
    if not sys.stdout.isatty():
        yield PlainDisplay()
        return
    console = Console()
    live = LiveDisplay(console)
    with Live(live.body, console=console, refresh_per_second=5):
        yield live
        live.close()
