"""Scenario files for tests."""

from __future__ import annotations

from pathlib import Path

from inaproto_controller.simulate.scenario.scenario import Scenario, load_scenario

SMALL = """
seeds = 2

[cluster]
down = [4, 4]
up = [1, 2]
quota = "switch"

[speeds]
preset = "sharing"

[models.mine]
duration = 0.01
allreduces = [{ start = 0.001, size = 25_000_000 }, { start = 0.002, size = 50_000_000 }]

[[jobs]]
model = "mine"
hosts = 5
steps = 40

[stream]
count = 12
hosts = { 1 = 1, 2 = 2, 4 = 1, 6 = 1 }
models = ["mine", "vit-large-4", "opt-125m-4"]

[arrivals]
process = "poisson"
rate = 1.0

[[compare]]
placement = "first"
trees = "exclusive"
policy = "greedy"

[[compare]]
name = "shared"
trees = "first"
"""

HOPELESS = """
[cluster]
degree = 4

[speeds]
ina_ratio = 1.0

[[jobs]]
model = "vit-base-4"
hosts = 4
steps = 10
"""
"""INA is no faster than what it replaces."""


def written(folder: Path, text: str = SMALL) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str = SMALL) -> Scenario:
    return load_scenario(written(folder, text))
