"""A pytest plugin that counts the CPU seconds of each test, its ended child processes included.

Wall time says little on a machine that does other things as well; user and system time says what a test
costs. After each run the tests are named that cost more than ``LIMIT_S`` and are not marked ``slow``: they
belong into ``tests/slow.py``. ``--cpu-report FILE`` writes the figures of all tests, the dearest first.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from inaproto_hil.rigs.fork_server import ended_cpu_s

LIMIT_S: Final = 2.0
NAMED: Final = 25
"""At most so many tests are named after a run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-report", metavar="FILE", help="write what each test costs, in CPU seconds, to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuReport(), "cpu-report-of-tests")


class CpuReport:
    """Measures where the tests run, and sums up where their reports arrive: with xdist two processes."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._cost_s: defaultdict[str, float] = defaultdict(float)
        self._slow: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._last_s = spent_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report: Any = yield
        now_s = spent_s()
        report.cpu_s = now_s - self._last_s
        self._last_s = now_s
        report.is_slow = item.get_closest_marker("slow") is not None
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._cost_s[report.nodeid] += getattr(report, "cpu_s", 0.0)
        if getattr(report, "is_slow", False):
            self._slow.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        dearest = sorted(self._cost_s.items(), key=lambda entry: -entry[1])
        total_s = sum(self._cost_s.values())
        terminalreporter.write_line(
            f"{len(dearest)} tests used {total_s:.0f} s of CPU, collection not counted"
        )
        unmarked = [(name, cost) for name, cost in dearest if cost > LIMIT_S and name not in self._slow]
        if unmarked:
            terminalreporter.section(f"more than {LIMIT_S:g} s of CPU, and not marked slow (tests/slow.py)")
            for name, cost in unmarked[:NAMED]:
                terminalreporter.write_line(f"{cost:6.1f} {name}")
        path = config.getoption("cpu_report")
        if path is not None:
            lines = [
                f"{cost:8.2f} {'slow' if name in self._slow else 'fast'} {name}\n" for name, cost in dearest
            ]
            Path(path).write_text("".join(lines))


def spent_s() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + ended_cpu_s()
