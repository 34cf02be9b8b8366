"""What is planned: jobs that train a measured model. Their traces, and the speeds of MINA's experiments."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Final

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError
from inaproto_controller.cluster.step_times import Speeds

EVALUATED: Final = (
    "opt-125m-4",
    "opt-350m-4",
    "opt-1.3b-4",
    "bert-base-4",
    "bert-large-4",
    "vit-base-4",
    "vit-large-4",
)
"""Models of the paper's evaluation; streams of requests name them by their place here."""

CLUSTER: Final = Speeds(12.5e9, 2.0, 5e-5)
SHARING: Final = Speeds(12.5e9, 1.5, 5e-5, 1.5)
CONFLICTS: Final = Speeds(2e9, 1.0, 5e-5)


@cache
def measured(name: str) -> ModelTrace:
    """A trace that is part of inaproto. Raises ``ConfigError``, which names those that there are."""
    folder = resources.files("inaproto_controller") / "data" / "mina"
    path = folder / f"{name}.json"
    if name not in measured_names():
        raise ConfigError(f"no model trace {name!r}; there are {', '.join(measured_names())}")
    return ModelTrace.decode(name, json.loads(path.read_text(encoding="utf-8")))


@cache
def measured_names() -> tuple[str, ...]:
    folder = resources.files("inaproto_controller") / "data" / "mina"
    names = (path.name for path in folder.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))
