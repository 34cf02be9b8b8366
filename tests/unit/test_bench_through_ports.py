"""``inaproto bench accelerator --ports``: what it measures and refuses; how fast that is, no test asks."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inaproto_hil.bench import through_ports
from inaproto_hil.bench.accelerator import Config
from inaproto_hil.bench.accelerator_command import accelerator
from inaproto_hil.bench.through_ports import measure_ports

CONFIG = Config(workers=3, rings=2, payload=64, packets=8, window=2, sets=5, rounds=3, warmup=1, seed=1)
TWO_CPUS = pytest.mark.usefixtures("two_cpus")
"""One for the switch, one for hosts."""


@TWO_CPUS
def test_every_sum_comes_right_through_the_ports() -> None:
    cpus = os.sched_getaffinity(0)
    report = measure_ports(CONFIG)
    assert report["wrong"] == 0
    assert report["benchmark"] == "accelerator-ports"
    assert len(report["samples_us"]) == CONFIG.rounds
    for name in ("gbps_per_core", "gbps", "hosts_gbps_per_core"):
        low, high = report[f"{name}_spread"]
        assert 0 < low <= report[name] <= high
    assert os.sched_getaffinity(0) == cpus, "as before"


@TWO_CPUS
def test_a_switch_that_cannot_have_the_rings_says_why() -> None:
    large = Config(
        workers=64, rings=16, payload=4096, packets=4096, window=64, sets=1, rounds=3, warmup=0, seed=1
    )
    with pytest.raises(click.ClickException, match="memory"):
        measure_ports(large)


def test_it_is_either_ports_or_shards() -> None:
    result = CliRunner().invoke(accelerator, ["--ports", "--shards", "2"])
    assert result.exit_code == 2
    assert "ask for one" in result.output


@TWO_CPUS
def test_a_round_without_results_fails_and_leaves_no_port_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(through_ports, "_ROUND_S", 0.0)
    before = sockets()
    with pytest.RaisesGroup(
        pytest.RaisesExc(click.ClickException, match="have not come"), flatten_subgroups=True
    ):
        measure_ports(CONFIG)
    assert sockets() == before


def sockets() -> set[str]:
    """Those that this process has open."""
    fds = Path("/proc/self/fd")
    return {name for fd in os.listdir(fds) if (name := os.path.realpath(fds / fd)).count("socket:")}
