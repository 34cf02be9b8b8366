"""The drawing of who used INA when, measured in the SVG, against the published simulator's flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto.cli import cli
from inaproto_controller.simulate.results import Operation
from inaproto_controller.simulate.scenario.timeline import Seen
from tests.controller.scenarios import SMALL, written
from tests.data.mina.reference import reference

PAIR = """
[cluster]
down = [4]
up = [1]
quota = "switch"

[speeds]
preset = "sharing"

[[jobs]]
model = "opt-125m-4"
hosts = 2
steps = 1000

[[jobs]]
model = "vit-large-4"
hosts = 2
steps = 1000

[[compare]]
trees = "first"
policy = "score"
"""
UNTIL = 0.3812
_NUMBER = r"(-?[\d.]+)"


def svg(folder: Path, text: str, *options: str) -> str:
    file = folder / "timeline.svg"
    command = ["simulate", str(written(folder, text)), "--timeline", str(file), *options]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    return file.read_text(encoding="utf-8")


def bars(drawing: str, group: str, window: tuple[float, float]) -> list[tuple[float, float]]:
    """(begin, end) of a group's bars, seconds; the grey line of a job is as long as the window."""
    line = re.search(rf'id="line2d_1">\s*<path d="M {_NUMBER} {_NUMBER} \nL {_NUMBER}', drawing)
    assert line is not None
    left, right = float(line[1]), float(line[3])
    scale = (window[1] - window[0]) / (right - left)
    found = re.search(rf'<g id="{group}">(.*?)</g>', drawing, re.DOTALL)
    if found is None:
        return []
    paths = re.findall(rf'd="M {_NUMBER} {_NUMBER} \nL {_NUMBER} ', found[1])
    return [tuple(window[0] + scale * (float(path[place]) - left) for place in (0, 2)) for path in paths]  # type: ignore[misc]


def test_bars_are_the_published_simulator_s_operations(tmp_path: Path) -> None:
    drawing = svg(tmp_path, PAIR, "--timeline-window", f"0:{UNTIL}", "--timeline-jobs", "0,1")
    published = reference("ref04_sharing_timeline")["ops"]
    compared = 0
    for job in (0, 1):
        for kind, uses_ina in (("ina", True), ("plain", False)):
            expected = sorted(
                (one["start"], one["end"])
                for one in published
                if one["job"] == job and one["ina"] is uses_ina
            )
            drawn = sorted(bars(drawing, f"panel-0-job-{job}-{kind}", (0.0, UNTIL)))
            # What has not ended when the published record ends is drawn up to the window's end.
            assert len(drawn) - len(expected) in {0, 1}
            assert all(end == pytest.approx(UNTIL) for _, end in drawn[len(expected) :])
            for ours, theirs in zip(drawn, expected, strict=False):
                assert ours == pytest.approx(theirs, abs=1e-7)
                compared += 1
    assert compared == len(published) == 222


def test_a_panel_for_each_variant_and_a_row_for_each_chosen_job(tmp_path: Path) -> None:
    drawing = svg(tmp_path, SMALL, "--timeline-jobs", "3,0", "--timeline-window", "0:20s")
    assert "<!-- first / exclusive / greedy -->" in drawing
    assert "<!-- shared -->" in drawing
    rows = re.findall(r"<!-- (\d+): [\w.-]+, \d+ hosts? -->", drawing)
    assert rows == ["3", "0", "3", "0"]


def test_jobs_and_a_window_are_found_by_itself(tmp_path: Path) -> None:
    drawing = svg(tmp_path, SMALL)
    assert re.search(r'id="panel-0-job-\d+-(ina|plain)"', drawing)
    assert svg(tmp_path, SMALL) == drawing


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--timeline-jobs", "13"], "there is no job 13; there are 0 to 12"),
        (["--timeline-window", "9000:9001s"], "nobody has an operation between 9000 and 9001 s"),
    ],
)
def test_what_cannot_be_drawn_is_a_message(options: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "timeline.svg"
    command = ["simulate", str(written(tmp_path)), "--timeline", str(file), *options]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not file.exists()


def test_only_what_is_in_the_window_is_kept() -> None:
    seen = Seen((1.0, 2.0), frozenset({7}))
    for job, begin, end in ((7, 0.0, 1.0), (7, 0.5, 1.5), (8, 1.2, 1.4), (7, 1.9, 2.5), (7, 2.0, 3.0)):
        seen(Operation(job, 0, 0, True, begin, end))
    assert [(one.begin, one.end) for one in seen.operations] == [(0.5, 1.5), (1.9, 2.5)]
