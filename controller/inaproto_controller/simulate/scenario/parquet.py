"""All jobs of all runs as one Parquet file, a row each; pyarrow is optional (the extra ``parquet``)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inaproto.errors import Unsupported
from inaproto_controller.simulate.scenario.runs import Run
from inaproto_controller.simulate.scenario.scenario import Scenario


def require_parquet() -> None:
    """Raises ``Unsupported``."""
    _pyarrow("pyarrow")


def write_parquet(path: Path, scenario: Scenario, runs: Sequence[Run]) -> None:
    """``runs``: each with its jobs."""
    rows = list(job_rows(scenario, runs))
    table = _pyarrow("pyarrow").Table.from_pylist(rows)
    _pyarrow("pyarrow.parquet").write_table(table, path)


def job_rows(scenario: Scenario, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    for run in runs:
        for job in run.jobs or ():
            yield {"variant": scenario.variants[run.variant].label, "seed": run.seed, **job}


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unsupported("--parquet", "pyarrow is not installed: pip install 'inaproto[parquet]'") from None
