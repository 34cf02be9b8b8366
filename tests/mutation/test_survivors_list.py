"""The list of known survivors is complete, gives reasons, and fits the source; one quick slice is run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.results import (
    KILLED,
    STILLBORN,
    SURVIVED,
    TIMEOUT,
    UNTESTED,
    Change,
    Result,
    read_results,
)
from tests.mutation.run import PACKAGES, Outcome, campaign, faults_of, sample_size, unmeasured
from tests.mutation.survivors import (
    ROOT,
    SCORE_MIN,
    TO_SAY,
    Comparison,
    ModuleRecord,
    Survivor,
    SurvivorList,
    compare,
    lines_missing,
    read_survivors,
    score,
    source_path,
    write_survivors,
)

LISTED = read_survivors().modules


def has_functions(path: Path) -> bool:
    """Functions that do something: those of a Protocol are a docstring and dots."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = [line for line in node.body if not isinstance(line, ast.Expr)]
            if body:
                return True
    return False


def test_every_module_has_its_tests_and_its_record() -> None:
    modules = {
        ".".join(path.relative_to(ROOT / "inaproto").with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / "inaproto" / package).rglob("*.py")
        if has_functions(path)
    }
    judged, waiting = campaign(), unmeasured()
    assert not judged.keys() & waiting.keys()
    assert modules == judged.keys() | waiting.keys(), "campaign.toml says which tests judge a module"
    sampled = {module for module in judged if sample_size(module)}
    assert sampled == {module for module, record in LISTED.items() if record.of}, "a record says of how many"
    assert judged.keys() == LISTED.keys(), "python tests/mutation/run.py --module NAME --update"
    missing = [
        test for tests in judged.values() for test in tests if not (ROOT / test.partition("::")[0]).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("module", LISTED)
def test_every_survivor_has_a_reason_and_is_still_there(module: str) -> None:
    record = LISTED[module]
    assert len({survivor.change for survivor in record.survivors}) == len(record.survivors)
    for survivor in record.survivors:
        assert len(survivor.reason) > 10, survivor.change
        assert survivor.reason != TO_SAY, survivor.change
    gone = [str(change) for change in lines_missing(module, record.survivors)]
    assert gone == [], f"the source changed: python tests/mutation/run.py --module {module} --update"
    assert record.mutants == record.killed + record.timeout + len(record.survivors)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_score_of_a_package(package: str) -> None:
    reached = score(record for module, record in LISTED.items() if module.startswith(f"{package}."))
    assert reached is not None
    assert reached >= SCORE_MIN


def test_a_quick_slice_has_no_survivor_that_is_not_listed(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, str(ROOT / "tests/mutation/run.py"), "--module", "wire.udp", "--jobs", "1"]
    command += ["--state", str(tmp_path / "state"), "--json", str(told)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    module = json.loads(told.read_text())["modules"]["wire.udp"]
    assert module["mutants"] == LISTED["wire.udp"].mutants
    assert module["killed"] + module["timeout"] == LISTED["wire.udp"].killed + LISTED["wire.udp"].timeout
    _, results = read_results(tmp_path / "state" / "wire.udp.jsonl")
    assert all(result.killer for result in results.values() if result.status == KILLED), "a test killed it"


# --- the ratchet itself

OLD = Change("f", ("return 1",), ("return 2",))
NEW = Change("f", ("return 1",), ("return None",))
KNOWN = ModuleRecord("0" * 16, 3, 2, 0, (Survivor(OLD, "no test can tell", equivalent=True),))


def results(**statuses: str) -> dict[Change, Result]:
    changes = {"old": OLD, "new": NEW, "other": Change("g", ("x = 1",), ("x = 2",))}
    return {changes[name]: Result(changes[name], status) for name, status in statuses.items()}


def test_a_new_survivor_is_a_fault() -> None:
    found = compare("wire.udp", results(old=SURVIVED, new=SURVIVED, other=KILLED), KNOWN)
    assert found.new == (Survivor(NEW, TO_SAY),)
    assert found.record.survivors[0] == Survivor(NEW, TO_SAY) or found.record.survivors[1].reason == TO_SAY
    assert found.record.score == 0.5, "the equivalent one does not count"
    faults = faults_of([Outcome("wire.udp", found, 1.0)], 0.4)
    assert faults == [f"wire.udp: new survivor {NEW}"]
    assert len(faults_of([Outcome("wire.udp", found, 1.0)], 0.6)) == 2, "and the score"


def test_a_survivor_that_is_killed_now_is_told_and_is_no_fault() -> None:
    found = compare("wire.udp", results(old=KILLED, new=TIMEOUT, other=KILLED), KNOWN)
    assert (found.new, found.gone) == ((), KNOWN.survivors)
    assert (found.record.killed, found.record.timeout, found.record.score) == (2, 1, 1.0)
    assert faults_of([Outcome("wire.udp", found, 1.0)], SCORE_MIN) == []


def test_untested_lines_survive_and_the_stillborn_do_not_count() -> None:
    found = compare("wire.udp", results(old=STILLBORN, new=UNTESTED), None)
    assert found.record.mutants == 1
    assert [survivor.change for survivor in found.new] == [NEW]


def test_a_sample_says_of_how_many_mutants_it_was_drawn() -> None:
    found = results(old=KILLED, new=KILLED)
    assert [compare("wire.udp", found, None, of).record.of for of in (2, 30)] == [0, 30]


def test_a_campaign_that_did_not_end_is_a_fault() -> None:
    assert faults_of([Outcome("wire.udp", None, 1.0, "stopped")], 0.0) == ["wire.udp: stopped"]


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    second = Survivor(Change("f", ("return 1",), ("return 2",), 1), "found twice in it")
    record = ModuleRecord("a" * 16, 5, 2, 1, (*KNOWN.survivors, second), of=70)
    write_survivors(SurvivorList({"wire.udp": record}), path)
    assert read_survivors(path).modules == {"wire.udp": record}
    raw = json.loads(path.read_text())["modules"]["wire.udp"]
    assert (raw["equivalent"], raw["survived"], raw["score"]) == (1, 1, 0.75)


def test_a_line_that_is_gone_is_found() -> None:
    line = next(line.strip() for line in source_path("wire.udp").read_text().splitlines() if "pack" in line)
    there, gone = Survivor(Change("f", (line,), ()), "x"), Survivor(Change("f", ("no such line",), ()), "x")
    assert lines_missing("wire.udp", [there, gone]) == [gone.change]


def test_a_comparison_is_no_fault_where_there_is_nothing_to_kill() -> None:
    assert faults_of([Outcome("wire.udp", Comparison(ModuleRecord("0" * 16)), 0.0)], SCORE_MIN) == []
