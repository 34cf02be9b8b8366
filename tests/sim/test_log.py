from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from inaproto.errors import ConfigError, DecodeError
from inaproto.sim.campaign.failure import is_hit, last_turn, say_failure
from inaproto.sim.campaign.log import Log, read_log
from inaproto.sim.campaign.sequence_diagram import draw
from inaproto.sim.frames.draw.swarm import draw_world
from inaproto_hil.soak.parts import installed
from tests.sim.third_nak import PARTS, PRODUCT, PROGRAM, SEED


@pytest.fixture(scope="module")
def failed() -> Log:
    return PARTS.record(draw_world(SEED), PROGRAM)


@pytest.fixture
def lines(failed: Log, tmp_path: Path) -> list[str]:
    failed.write(tmp_path / "log")
    return (tmp_path / "log").read_text().splitlines(keepends=True)


def test_a_log_reads_back_as_it_was_written(failed: Log, tmp_path: Path) -> None:
    failed.write(tmp_path / "log")
    assert read_log(tmp_path / "log") == failed


def test_a_recorder_changes_nothing(failed: Log) -> None:
    silent = PARTS.run(draw_world(SEED))
    assert (silent.digest, silent.violation, silent.fates) == (failed.digest, failed.violation, failed.fates)
    assert len(failed.records) == silent.events


def test_every_frame_is_told_with_its_end(failed: Log) -> None:
    sends = [send for record in failed.records for send in record.get("sends", [])]
    assert all("lost" in send or send["due"] for send in sends)
    hit = sum(map(len, failed.fates.values()))
    assert sum("fate" in send for send in sends) == hit > 0
    by_link: dict[str, list[int]] = {}
    for send in sends:
        by_link.setdefault(send["link"], []).append(send["number"])
    assert all(numbers == list(range(len(numbers))) for numbers in by_link.values())


def test_a_failure_is_told_with_all_that_a_person_needs(failed: Log) -> None:
    text = say_failure(failed, path="out/seed-7.jsonl")
    violation = failed.violation
    assert violation is not None
    for said in (
        "seed 7: broken rule: no third NAK",
        violation.evidence,
        f"event {violation.event}",
        "commit 0123456789abcdef",
        "last 12 events:",
        "inaproto soak --seed 7 --with tests.sim.third_nak:PARTS",
        "inaproto replay out/seed-7.jsonl --svg out.svg --with tests.sim.third_nak:PARTS",
    ):
        assert said in text
    assert text.partition("last 12 events:")[2].count("\n    event ") == 12


def test_a_run_that_kept_the_rules_is_told_in_one_line() -> None:
    log = PRODUCT.record(draw_world(3), PROGRAM)
    assert say_failure(log) == f"seed 3: no rule was broken in {len(log.records)} events"


def test_no_log_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_log(tmp_path / "none")


def test_a_damaged_log_says_where(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    header = json.loads(lines[0])
    del header["digest"]
    wrong_fate = json.loads(lines[0])
    wrong_fate["fates"] = {"host0>switch": {"3": [True, 0]}}
    for content, said in (
        ("", "is empty"),
        ("hello\n", "line 1 is not JSON"),
        ("[]\n", "line 1 is not a JSON object"),
        ('{"a": 1}\n', "line 1 is not the header"),
        ("".join(lines[:-1]), "the file is cut off"),
        ("".join(lines)[:-20], f"line {len(lines)} is not JSON"),
        ("".join(lines[:5] + lines[6:]), "line 6 is event 6, expected 5"),
        (json.dumps(header) + "\n" + "".join(lines[1:]), "field 'digest' is missing"),
        (json.dumps(wrong_fate) + "\n" + "".join(lines[1:]), "header is damaged"),
    ):
        path.write_text(content)
        with pytest.raises(DecodeError, match=said) as raised:
            read_log(path)
        assert "at byte" not in str(raised.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DecodeError, match="not UTF-8"):
        read_log(path)


def test_a_log_of_another_format_is_refused(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "newer"
    path.write_text(json.dumps(json.loads(lines[0]) | {"format": 99}) + "\n")
    with pytest.raises(ConfigError, match="format 99"):
        read_log(path)


def test_a_failure_tells_what_befell_the_world(failed: Log) -> None:
    text = say_failure(failed)
    hits = [
        (record["n"], send) for record in failed.records for send in record.get("sends", []) if is_hit(send)
    ]
    assert hits
    for number, send in hits[-5:]:
        assert f"event {number}, {send['link']} frame {send['number']}" in text
    assert "faults and frames that were hit" in text


def test_events_in_which_nothing_moves_are_one_line(failed: Log) -> None:
    at = failed.records[-1]["at"]
    said = [{"at": at, "node": 0, "text": "rank 0 of job0 on host0: its timer is due"}]
    tail = [
        {"n": len(failed.records) + count, "at": at, "node": 1000, "kind": "OperationStalled", "detail": 0}
        | ({"said": said} if count % 2 else {})
        for count in range(1, 41)
    ]
    stuck = replace(failed, records=failed.records + tail)
    text = say_failure(stuck)
    assert f"events {tail[0]['n']} to {tail[-1]['n']}" in text
    assert "40 in which nothing moves" in text
    assert "20 x rank 0 of job0 on host0: its timer is due" in text
    assert f"event {len(failed.records)} at" in text  # what was before the silence is told too


def test_a_stuck_rank_is_told_with_what_it_lacks() -> None:
    with installed("tests.planted.catalogue:single_lookup_entry"):
        stuck = next(
            log
            for seed in range(30)
            if (log := PRODUCT.record(draw_world(seed), PROGRAM)).violation is not None
            and log.violation.rule == "nothing stays stuck"
        )
    assert stuck.violation is not None
    assert re.search(r"it has \d+ of its \d+ results", stuck.violation.evidence)
    assert "at the switch" in stuck.violation.evidence
    turn = last_turn(stuck)
    assert turn is not None
    text = say_failure(stuck)
    assert f"    event {turn} at" in text
    drawing = draw(stuck)
    assert f"event {stuck.violation.event}: all-reduce failed" in drawing
    assert drawing.count("(first of") < 60
    record = stuck.records[turn - 1]
    times = [record["at"], *(said["at"] for said in record.get("said", []))]
    assert any(f"{at / 1e6:.6f} ms" in drawing for at in times), "the drawing goes back to the last turn"
