"""Worlds by the compiled copy run in worker processes, which import that instead of the source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from inaproto.task_engines import Engine, Local, open_engine
from inaproto_hil.compiled.choice import Code, require

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


class Compiled:
    """``jobs`` processes that run the compiled copy in ``folder`` and nothing else. One is one more, too:
    this process has imported the source.
    """

    def __init__(self, jobs: int, folder: Path) -> None:
        self._local = Local(jobs, imports_first=folder)
        self._folder = folder

    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        return self._local.outcomes(partial(_by_compiled_code, self._folder, work), tasks)


def _by_compiled_code(folder: Path, work: Callable[[Task], Outcome], task: Task) -> Outcome:
    require(folder)
    return work(task)


def open_engine_for(code: Code, name: str, jobs: int) -> Engine:
    """As ``open_engine``; on Ray there is no compiled code."""
    return open_engine(name, jobs) if code.folder is None else Compiled(jobs, code.folder)
