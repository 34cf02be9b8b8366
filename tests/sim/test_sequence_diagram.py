from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from inaproto.sim.campaign.log import Log
from inaproto.sim.campaign.sequence_diagram import draw
from inaproto.sim.campaign.sequence_scene import scene_of
from inaproto.sim.frames.draw.swarm import draw_world
from tests.sim.third_nak import PARTS, PROGRAM, SEED

SVG = "{http://www.w3.org/2000/svg}"
ALL = 100_000


@pytest.fixture(scope="module")
def failed() -> Log:
    return PARTS.record(draw_world(SEED), PROGRAM)


def lines(drawing: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [line for line in drawing.iter(f"{SVG}line") if line.get("class") == kind]


def test_every_frame_has_its_arrow(failed: Log) -> None:
    drawing = ElementTree.fromstring(draw(failed, last=ALL))
    sends = [send for record in failed.records for send in record.get("sends", [])]
    end = failed.records[-1]["at"]
    lost = sum("lost" in send for send in sends)
    dues = [due for send in sends if "lost" not in send for due in send["due"]]
    assert lost > 0
    assert len(lines(drawing, "lost")) == lost
    assert len(lines(drawing, "frame")) == sum(due <= end for due in dues)
    assert len(lines(drawing, "under-way")) == sum(due > end for due in dues)


def test_time_runs_down(failed: Log) -> None:
    drawing = ElementTree.fromstring(draw(failed, last=ALL))
    for line in lines(drawing, "frame"):
        assert float(line.attrib["y2"]) > float(line.attrib["y1"])


def test_no_two_texts_share_a_row_on_one_side(failed: Log) -> None:
    """Each label has a row to itself beside its time, so texts cannot overlap."""
    drawing = ElementTree.fromstring(draw(failed))
    shown = [text for text in drawing.iter(f"{SVG}text") if text.get("fill")]
    rows: dict[int, int] = {}
    for text in shown:
        y = float(text.attrib["y"])
        if y > 128 and text.text and not text.text.endswith(" ms"):
            rows[round(y / 10)] = rows.get(round(y / 10), 0) + 1
    assert len(rows) > 50
    assert max(rows.values()) == 1


def test_the_failure_is_marked_and_told(failed: Log) -> None:
    text = draw(failed)
    violation = failed.violation
    assert violation is not None
    assert f"event {violation.event}: takes in NAK" in text
    assert "broken rule: no third NAK" in text
    assert violation.evidence in text


def test_nothing_is_fetched_from_elsewhere(failed: Log) -> None:
    text = draw(failed)
    assert text.count("http") == 1  # the name space
    assert "<script" not in text
    assert "href" not in text


def test_last_bounds_the_lines(failed: Log) -> None:
    few, many = (ElementTree.fromstring(draw(failed, last=last)) for last in (5, 60))
    assert float(few.attrib["height"]) < float(many.attrib["height"]) / 2


def test_a_drawing_begins_at_the_event_that_is_asked_for(failed: Log) -> None:
    first = next(record["n"] for record in failed.records[50:] if "sends" in record)
    at = failed.records[first - 1]["at"]
    rows = draw(failed, last=9, first=first)
    assert f"{at / 1e6:.6f} ms" in rows
    times = [float(found) for found in re.findall(r">(\d+\.\d{6}) ms<", rows)]
    assert min(times) >= at / 1e6 - 1e-6
    assert "broken rule" in rows
    assert f"event {failed.violation.event}: " in rows if failed.violation else False


def test_the_failing_row_is_where_the_evidence_points(failed: Log) -> None:
    """Found some time after the last event, of a host that it names."""
    assert failed.violation is not None
    at = failed.records[-1]["at"] + 3_000_000
    late = replace(failed.violation, at_ns=at, evidence="host0: its timer is gone")
    (failing,) = [point for point in scene_of(replace(failed, violation=late), 60).points if point.failing]
    assert (failing.at, failing.node, failing.text) == (at, 0, "broken: no third NAK")
    assert f"{at / 1e6:.6f} ms" in draw(replace(failed, violation=late))
