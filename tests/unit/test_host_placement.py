"""On which CPUs the event loop of a host daemon runs, and its other threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inaproto.daemon.host.placement import place, unbound
from inaproto.daemon.settings.cpus import format_cpus, parse_cpus
from inaproto.doctor.findings import Outcome
from inaproto.errors import ConfigError
from inaproto_adapters.verbs.checks import look_at_placement
from inaproto_adapters.verbs.devices import cpus_near


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("7,1-2", {1, 2, 7}), ("5-5", {5})]
)
def test_cpus_as_the_kernel_writes_them(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_runs_of_cpus_are_written_as_ranges() -> None:
    assert format_cpus([8, 3, 1, 2]) == "1-3,8"


@pytest.mark.parametrize("text", ["", "3-1", "a", "1-", "-1", "0-70000", "1,,2"])
def test_what_is_no_cpu_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse_cpus(text)


class Kernel:
    """Affinity of one thread, on a machine of eight CPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = frozenset(range(8))
        self.calls = 0
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(self.allowed))
        monkeypatch.setattr(os, "sched_setaffinity", self._set)

    def _set(self, pid: int, cpus: frozenset[int]) -> None:
        self.allowed = frozenset(cpus)
        self.calls += 1


@pytest.mark.parametrize(
    ("wish", "cpus", "why"),
    [
        ("auto", "0-7", ""),
        ("all", "0-7", ""),
        ("auto:4-7", "4-7", "near the NIC"),
        ("auto:6-15", "6-7", "near the NIC"),
        ("auto:8-15", "0-7", ""),
        ("auto:0-7", "0-7", ""),
        ("2,5", "2,5", "asked for"),
    ],
)
def test_the_loop_runs_where_it_was_wished(
    monkeypatch: pytest.MonkeyPatch, wish: str, cpus: str, why: str
) -> None:
    kernel = Kernel(monkeypatch)
    placed = place(wish)
    assert placed.status() == {"cpus": cpus, "why": why}
    assert format_cpus(kernel.allowed) == cpus


def test_cpus_that_the_process_may_not_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch)
    with pytest.raises(ConfigError, match="cpus: 9: this process may use 0-7 alone"):
        place("7,9")


def test_other_threads_run_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    ran: list[str] = []
    run = place("3").elsewhere(lambda: ran.append(format_cpus(os.sched_getaffinity(0))))
    for _ in range(2):
        run()
    assert ran == ["0-7", "0-7"]
    assert kernel.calls == 2, "the loop's thread once, the other one once"


def test_an_unbound_thread_has_nothing_to_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch)

    def run() -> None: ...

    assert unbound().elsewhere(run) is run


# ---- the device


def test_a_device_says_which_cpus_are_near(tmp_path: Path) -> None:
    device = tmp_path / "mlx5_0" / "device"
    device.mkdir(parents=True)
    assert cpus_near("mlx5_0", tmp_path) == "", "Soft-RoCE has no place"
    (device / "local_cpulist").write_text("0-7\n")
    (device / "numa_node").write_text("-1\n")
    assert cpus_near("mlx5_0", tmp_path) == "", "one node alone"
    (device / "numa_node").write_text("1\n")
    assert cpus_near("mlx5_0", tmp_path) == "0-7"


@pytest.mark.parametrize(
    ("near", "daemons", "outcome"),
    [
        ("", [("host h0", "0-3")], Outcome.UNTESTABLE),
        ("0-3", [], Outcome.UNTESTABLE),
        ("0-3", [("host h0", "1-2")], Outcome.OK),
        ("0-3", [("host h0", "0-7")], Outcome.WARNING),
    ],
)
def test_doctor_looks_where_daemons_run(near: str, daemons: list[tuple[str, str]], outcome: Outcome) -> None:
    [found] = look_at_placement("mlx5_0", near, daemons)
    assert found.outcome is outcome
    assert "mlx5_0" in found.found
