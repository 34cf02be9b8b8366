"""Which alerts of ``deploy/alerts.yml`` fire on what real daemons have told, as ``promtool`` judges it.

A test scrapes daemons when all is well, plants a fault, and scrapes them again. Of both, an hour and a half
is made, a sample each minute, so that no outcome depends on how fast the machine is: ten minutes in which all
stays as it was first; then the fault, which goes on as it was seen: gauges stay, counters grow each minute by
as much as between two scrapes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from tests.daemon.scraping import Samples, scrape, value

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
RULES: Final = DEPLOY / "alerts.yml"
WELL_MINUTES: Final = 10
FAULT_MINUTES: Final = 80
_SECONDS_MAX: Final = 60

Instances = Mapping[str, Samples | None]
"""Samples by daemon; None: it gave none."""


@dataclass
class Scraped:
    """Daemons by name, and the sockets of their metrics."""

    paths: dict[str, Path] = field(default_factory=dict)

    def add(self, name: str, directory: Path) -> str:
        """What its option ``metrics`` is to be."""
        self.paths[name] = directory / f"{name}.metrics"
        return str(self.paths[name])

    async def look(self) -> dict[str, Samples | None]:
        """As Prometheus would."""
        found: dict[str, Samples | None] = {}
        for name, path in self.paths.items():
            try:
                found[name] = await scrape(path)
            except (FileNotFoundError, ConnectionError):
                found[name] = None
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """What daemons told when all was well, when the fault had begun, and a minute later."""

    before: Instances
    began: Instances
    during: Instances

    @classmethod
    def of(cls, before: Instances, during: Instances, began: Instances | None = None) -> Told:
        """Without ``began``, all that was counted is of the first minute, and so of each that follows."""
        return cls(before, before if began is None else began, during)


def judged(promtool: Path, directory: Path, told: Told) -> tuple[set[str], set[str]]:
    """Alerts that fire before the fault, and at its end."""
    return (
        _firing(promtool, directory, told, WELL_MINUTES - 1),
        _firing(promtool, directory, told, WELL_MINUTES + FAULT_MINUTES - 1),
    )


def _firing(promtool: Path, directory: Path, told: Told, minute: int) -> set[str]:
    """``promtool`` is asked for no alerts, and says which there are instead."""
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series(told),
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minute}m",
                        "exp_samples": [],
                    }
                ],
            }
        ],
    }
    path = directory / f"alerts-{minute}.json"  # YAML, too
    path.write_text(json.dumps(test))
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if done.returncode == 0:
        return set()
    (got,) = [line for line in (done.stdout + done.stderr).splitlines() if "got:" in line]
    assert '{alertname="' in got, done.stdout + done.stderr
    return {part.partition('"')[0] for part in got.split('{alertname="')[1:]}


def series(told: Told) -> list[dict[str, str]]:
    found = []
    for instance in sorted({*told.before, *told.during}):
        three = [one.get(instance) for one in (told.before, told.began, told.during)]
        up = f"{_flat(three[0] is not None, WELL_MINUTES)} {_flat(three[2] is not None, FAULT_MINUTES)}"
        found.append({"series": _named("up", {}, instance), "values": up})
        for key in sorted(
            {key for one in three for key in one or {}}, key=lambda key: (key[0], sorted(key[1]))
        ):
            values = _values(key[0], *((one or {}).get(key) for one in three))
            found.append({"series": _named(key[0], dict(key[1]), instance), "values": values})
    return found


def _values(name: str, before: float | None, began: float | None, during: float | None) -> str:
    well = f"_x{WELL_MINUTES}" if before is None else _flat(before, WELL_MINUTES)
    if during is None:
        return f"{well} stale"
    if not name.endswith("_total"):
        return f"{well} {_flat(during, FAULT_MINUTES)}"
    pace = during - (began or 0)
    if pace < 0:  # it was started anew
        pace = during
    return f"{well} {_number(during)}+{_number(pace)}x{FAULT_MINUTES - 1}"


def _flat(value: float, minutes: int) -> str:
    return f"{_number(value)}+0x{minutes - 1}"


def _number(value: float) -> str:
    return format(float(value), ".9f").rstrip("0").rstrip(".")


def _named(name: str, labels: Mapping[str, str], instance: str) -> str:
    whole = {"job": "inaproto", "instance": instance} | dict(labels)
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in whole.items())}}}"


def assert_fires(promtool: Path, directory: Path, told: Told, alerts: Collection[str]) -> None:
    """These and no others, and none before the fault."""
    well, fault = judged(promtool, directory, told)
    assert well == set()
    assert fault == set(alerts)


async def until_scraped(
    scraped: Scraped, condition: Callable[[dict[str, Samples | None]], bool]
) -> dict[str, Samples | None]:
    """What was scraped when it was so; the cluster's deadline bounds it."""
    while True:
        found = await scraped.look()
        if condition(found):
            return found
        await trio.sleep(0.05)


def says(
    instance: str, name: str, least: float, **labels: str
) -> Callable[[dict[str, Samples | None]], bool]:
    def condition(found: dict[str, Samples | None]) -> bool:
        samples = found[instance]
        return samples is not None and value(samples, name, **labels) >= least

    return condition
