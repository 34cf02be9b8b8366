"""Try the mutants of modules: ``python tests/mutation/session.py [--module NAME:SAMPLE ...] TESTS...``.

Started by ``run.py``, one process for the modules that the same tests judge. pytest collects the tests once.
One child runs them all against the original, notes which tests run which lines (coverage.py) and how long
each takes. Then every mutant gets a child of its own: fork, put the mutant in, run the tests that reach its
lines, the ones that killed before and the quick ones first, until one fails.

Invariants: the parent runs no test, so what a test leaves behind (caches, tables) dies with its child; no
child outlives its limits of processor time, wall time and memory; every outcome is on disk before the
next mutant starts.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import coverage.exceptions  # noqa: E402
import pytest  # noqa: E402

from tests.mutation.mutants import CannotApply, Mutant, apply, mutants_of, sample_of  # noqa: E402
from tests.mutation.results import (  # noqa: E402
    KILLED,
    STILLBORN,
    SURVIVED,
    TIMEOUT,
    UNTESTED,
    Change,
    Result,
    read_results,
)
from tests.seeds import ALL, ROTATION  # noqa: E402

CPU_FACTOR = 4
CPU_SECONDS_MIN = 1.0
WALL_FACTOR = 20
MEMORY_BYTES_MAX = 3 << 30
_Cache = functools._lru_cache_wrapper
_STATUS = {0: SURVIVED, 1: KILLED, 2: STILLBORN}


def fingerprint(tests: Sequence[str]) -> str:
    """Of all that decides an outcome here: the package, the tests' directories, the generator."""
    directories = {(ROOT / test.partition("::")[0]).parent for test in tests}
    files = [*(ROOT / "inaproto").rglob("*.py"), *(ROOT / "tests" / "mutation").glob("*s.py")]
    files += [path for directory in directories for path in directory.glob("*.py")]
    digest = hashlib.sha256(" ".join(tests).encode())
    for path in sorted(set(files)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@dataclass(slots=True)
class _Child:
    pid: int
    pidfd: int
    report: int
    mutant: Mutant
    start: float
    deadline: float


@dataclass(slots=True)
class Target:
    """A module whose mutants are tried."""

    module: str
    results: Path
    sample: int
    """How many of its mutants are tried; 0: all."""
    heading: dict[str, Any]
    done: dict[Change, Result]
    mutants: int = 0
    """All that it has."""
    complete: bool = False
    seconds: float = 0.0
    reach: dict[int, set[str]] = field(default_factory=dict)
    """Line of the module -> tests that run it."""

    @property
    def path(self) -> Path:
        return ROOT.joinpath("inaproto", *self.module.split(".")).with_suffix(".py")

    def drawn(self) -> list[Mutant]:
        """The mutants that count; results of others are forgotten: an earlier source may have had them."""
        every = mutants_of(self.path.read_text())
        self.mutants = len(every)
        drawn = sample_of(every, self.sample) if self.sample else every
        changes = {mutant.change for mutant in drawn}
        if not self.done.keys() <= changes:
            self.done = {change: result for change, result in self.done.items() if change in changes}
            lines = [json.dumps(self.heading), *(result.as_json() for result in self.done.values())]
            self.results.write_text("\n".join(lines) + "\n")
        return drawn

    def live(self) -> dict[tuple[str, int], list[FunctionType]]:
        live: dict[tuple[str, int], list[FunctionType]] = {}
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename == str(self.path):
                code = function.__code__
                live.setdefault((code.co_qualname, code.co_firstlineno), []).append(function)
        return live


@dataclass(slots=True, eq=False)
class Session:
    """The pytest plugin."""

    targets: list[Target]
    jobs: int
    seconds: float
    again: bool
    cost: dict[str, float] = field(default_factory=dict)
    """Processor seconds of each test with the original."""
    kills: Counter[str] = field(default_factory=Counter)
    items: dict[str, pytest.Item] = field(default_factory=dict)
    caches: list[_Cache[Any]] = field(default_factory=list)
    """Of the modules."""
    alone: set[str] = field(default_factory=set)
    """Tests that are known to pass alone."""
    failed: str = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # Imported here, for pytest wants to be first.
        from hypothesis import HealthCheck, Phase, settings

        # The same examples for every mutant, and no time for shrinking what fails.
        settings.register_profile(
            "mutation",
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("tests cannot be collected")
        self.items = {item.nodeid: item for item in session.items}
        for target in self.targets:
            importlib.import_module(f"inaproto.{target.module}")
        end = time.monotonic() + self.seconds
        gc.unfreeze()  # tests/conftest.py has frozen them
        paths = {str(target.path) for target in self.targets}
        self.caches = [
            item
            for item in gc.get_objects()
            if isinstance(item, _Cache) and inspect.unwrap(item).__code__.co_filename in paths
        ]
        self._run_original()
        for test in self.kills:
            self._expect_alone(test)
        for target in self.targets:
            start = time.monotonic()
            self._try(target, end)
            target.seconds = time.monotonic() - start
        return True

    def _try(self, target: Target, end: float) -> None:
        mutants = [mutant for mutant in target.drawn() if self._is_due(target, mutant.change)]
        mutants.sort(key=lambda mutant: sum(self.cost[test] for test in self._tests(target, mutant)))
        live = target.live()
        gc.freeze()  # children copy fewer pages
        running: list[_Child] = []
        pending = iter(mutants)
        left = len(mutants)
        with target.results.open("a") as out:
            while left:
                while len(running) < self.jobs and time.monotonic() < end:
                    mutant = next(pending, None)
                    if mutant is None:
                        break
                    if tests := self._tests(target, mutant):
                        running.append(self._start(target, mutant, tests, live))
                    else:
                        left -= 1
                        self._note(target, Result(mutant.change, UNTESTED), out)
                if not running:
                    break
                for result in self._wait(running):
                    left -= 1
                    self._note(target, result, out)
        gc.unfreeze()
        target.complete = not left

    def _is_due(self, target: Target, change: Change) -> bool:
        known = target.done.get(change)
        return known is None or (self.again and known.status in {SURVIVED, UNTESTED})

    def _note(self, target: Target, result: Result, out: Any) -> None:
        target.done[result.change] = result
        if result.killer:
            self._expect_alone(result.killer)
            self.kills[result.killer] += 1
        out.write(result.as_json() + "\n")
        out.flush()

    def _run_original(self) -> None:
        """Fills ``reach`` and ``cost`` by a child."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _silence()
            paths = [str(target.path) for target in self.targets]
            measured = coverage.Coverage(data_file=None, include=paths, config_file=False)
            measured.start()
            cost = {}
            for nodeid, item in self.items.items():
                self._clear_caches()
                measured.switch_context(nodeid)
                start = time.process_time()
                _run(item)
                cost[nodeid] = time.process_time() - start
            measured.stop()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", coverage.exceptions.CoverageWarning)  # no line at all was run
                reach = {path: measured.get_data().contexts_by_lineno(path) for path in paths}
            with os.fdopen(write, "w") as pipe:
                json.dump({"reach": reach, "cost": cost, "failed": self.failed}, pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        told: dict[str, Any] = json.loads(text) if text else {"failed": "the run ended early"}
        if told["failed"]:
            raise pytest.UsageError(f"the tests must pass before mutants are tried: {told['failed']}")
        for target in self.targets:
            lines = told["reach"][str(target.path)].items()
            target.reach = {int(line): {test for test in tests if test} for line, tests in lines}
        self.cost = told["cost"]

    def _expect_alone(self, test: str) -> None:
        """A test that kills must pass by itself with the original: else it is no mutant that it fails for."""
        if test in self.alone or test not in self.items:
            return
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _silence()
                self._clear_caches()
                _run(self.items[test])
                code = int(bool(self.failed))
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            raise pytest.UsageError(f"{test} passes only behind other tests, so it can judge no mutant")
        self.alone.add(test)

    def _tests(self, target: Target, mutant: Mutant) -> list[str]:
        """Those that run the mutant's lines, likely and quick killers first."""
        for lines in (mutant.lines, mutant.body):
            names = set().union(*(target.reach.get(line, ()) for line in lines))
            if names:
                return sorted(
                    names,
                    key=lambda name: (-self.kills[name] / (0.01 + self.cost[name]), self.cost[name], name),
                )
        return []

    def _clear_caches(self) -> None:
        """What a function once returned must not speak for its mutant, nor keep a test from reaching it."""
        for cache in self.caches:
            cache.cache_clear()

    def _start(
        self,
        target: Target,
        mutant: Mutant,
        tests: list[str],
        live: dict[tuple[str, int], list[FunctionType]],
    ) -> _Child:
        cpu = CPU_SECONDS_MIN + CPU_FACTOR * sum(self.cost[test] for test in tests)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _silence()
                signal.setitimer(signal.ITIMER_PROF, cpu)
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 2, int(cpu) + 3))
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
                self._clear_caches()
                apply(mutant, str(target.path), live)
                for test in tests:
                    _run(self.items[test])
                    if self.failed:
                        os.write(write, test.encode())
                        break
                else:
                    code = 0
            except CannotApply:
                code = 2
            finally:
                os._exit(code)
        os.close(write)
        now = time.monotonic()
        return _Child(pid, os.pidfd_open(pid), read, mutant, now, now + WALL_FACTOR * (cpu + 1))

    def _wait(self, running: list[_Child]) -> Iterator[Result]:
        """Results of the children that have ended, at least one."""
        left = max(0.0, min(child.deadline for child in running) - time.monotonic())
        ready, _, _ = select.select([child.pidfd for child in running], [], [], left)
        for child in list(running):
            late = time.monotonic() >= child.deadline
            if child.pidfd not in ready and not late:
                continue
            if child.pidfd not in ready:
                os.kill(child.pid, signal.SIGKILL)
            _, wait_status = os.waitpid(child.pid, 0)
            running.remove(child)
            os.close(child.pidfd)
            with os.fdopen(child.report) as pipe:
                killer = pipe.read()
            code = os.waitstatus_to_exitcode(wait_status)
            timed_out = code in {-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL}
            status = TIMEOUT if timed_out else _STATUS.get(code, KILLED)
            yield Result(child.mutant.change, status, killer, round(time.monotonic() - child.start, 3))


def _run(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME:SAMPLE",
        help="such as wire.crc:60; 0 are all of its mutants",
    )
    parser.add_argument(
        "--state", type=Path, help="JSON lines for each module; what is known is not tried again"
    )
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--deselect", action="append", default=[], metavar="TEST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--again", action="store_true", help="try known survivors again, trust known kills")
    options = parser.parse_args()
    os.nice(10)
    sys.dont_write_bytecode = True
    mark = fingerprint([*options.tests, *options.deselect])
    targets = []
    for module, _, sample in (named.partition(":") for named in options.module):
        results = options.state / f"{module}.jsonl"
        heading, done = read_results(results)
        if heading.get("fingerprint") != mark and not options.again:
            results.unlink(missing_ok=True)
            done = {}
        with results.open("a") as out:
            out.write(json.dumps({"fingerprint": mark, "complete": False}) + "\n")
        targets.append(Target(module, results, int(sample), heading, done))
    session = Session(targets, options.jobs, options.seconds, options.again)
    for target in targets:
        session.kills.update(result.killer for result in target.done.values() if result.killer)
    arguments = [
        "-q",
        "--no-header",
        "--no-summary",
        "--tb=native",
        "-p",
        "no:randomly",
        "--rootdir",
        str(ROOT),
    ]
    arguments += [f"--deselect={test}" for test in options.deselect]
    os.environ.setdefault(ROTATION, ALL)  # which mutants survive must not change with the commit
    os.environ.setdefault("INAPROTO_KERNELS", "numpy")  # nor with the machine; their own tests choose theirs
    code = pytest.main([*arguments, *options.tests], plugins=[session])
    for target in targets:
        spent = target.seconds + (target.heading.get("seconds", 0.0) if target.done else 0.0)
        told = {"complete": target.complete, "seconds": round(spent, 1), "mutants": target.mutants}
        with target.results.open("a") as out:
            out.write(json.dumps(told) + "\n")
    return 0 if code in {0, 5} else 1


if __name__ == "__main__":
    sys.exit(main())
