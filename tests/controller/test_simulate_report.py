"""The page of ``inaproto simulate``, read as a browser reads it, and the example that comes with inaproto."""

from __future__ import annotations

import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto.cli import cli
from inaproto_controller.service.settings import ControllerSettings
from inaproto_controller.simulate.scenario.measures import MEASURES
from tests.controller.scenarios import HOPELESS, SMALL, loaded, written

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.toml"
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Texts by the innermost element, attributes, and whether elements close as they opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "xlink:href", "clip-path"}:
                self.references.append(value or "")
            assert not name.startswith("on")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.setdefault(self.open[-1] if self.open else "", []).append(" ".join(data.split()))

    def words(self) -> str:
        return " ".join(text for kind, texts in self.texts.items() if kind != "style" for text in texts)


def reported(folder: Path, text: str = SMALL) -> tuple[Page, str]:
    file = folder / "report.html"
    result = CliRunner().invoke(cli, ["simulate", str(written(folder, text)), "--report", str(file)])
    assert result.exit_code == 0, result.output
    html = file.read_text(encoding="utf-8")
    return Page(html), html


def test_the_page_says_it_all_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    page, html = reported(tmp_path)
    assert page.open == []
    words = page.words()
    assert "INA saves" in words
    assert "of what it could save it gets" in words
    assert "16" in page.texts["td"]
    for heading in (
        "Verdict",
        "The cluster",
        "Compared",
        "The cluster over time",
        "By model",
        "Jobs",
        "Terms",
    ):
        assert heading in page.texts["h2"]
    for measure in MEASURES:
        assert measure.label in page.texts["th"]
        assert measure.meaning in page.texts["dd"]
    assert page.tags.count("svg") == 4
    assert "Those that users waited for longest" in page.texts["h3"]
    # Within the page alone: ids are unique, and all references are to them.
    assert len(set(page.ids)) == len(page.ids)
    for reference in page.references:
        assert reference.removeprefix("url(").removesuffix(")").removeprefix("#") in page.ids
    assert "@import" not in html
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_hosts_that_are_busy_are_neither_good_nor_bad(tmp_path: Path) -> None:
    """They are most busy where jobs take longest: that is not the best, which is bold."""
    out = tmp_path / "page.html"
    path = written(tmp_path)
    assert CliRunner().invoke(cli, ["simulate", str(path), "--report", str(out)]).exit_code == 0
    rows = re.findall(r"<tr.*?</tr>", out.read_text(), re.DOTALL)
    (busy,) = [row for row in rows if ">hosts busy<" in row]
    assert "best" not in busy
    assert any("best" in row for row in rows), "or it would be no wonder"


def test_names_of_people_s_jobs_are_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script> & $x_1$"
    text = SMALL.replace('name = "shared"', f'name = "{name}"').replace("[models.mine]", '[models."<b>\\"$"]')
    text = f"title = '<i>{name}'\n" + text.replace('"mine"', '"<b>\\"$"')
    page, html = reported(tmp_path, text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert "i" not in page.tags
    assert name in page.texts["th"]
    assert '<b>"$ (own)' in page.texts["td"]
    assert f"<i>{name}" in page.texts["h1"]
    assert "alert(1)" in html


def test_nothing_saved_is_no_less_than_nothing(tmp_path: Path) -> None:
    """Steps are added up one by one: a tenth of a second, ten times, is not 1 s."""
    text = SMALL.replace('trees = "exclusive"', 'trees = "none"').replace("count = 12", "count = 40")
    page = tmp_path / "page.html"
    assert (
        CliRunner().invoke(cli, ["simulate", str(written(tmp_path, text)), "--report", str(page)]).exit_code
        == 0
    )
    words = page.read_text()
    assert ">0.0 %<" in words
    assert "-0.0" not in re.sub(r"<svg.*?</svg>", "", words, flags=re.DOTALL)


def test_what_is_counted_has_whole_ticks(tmp_path: Path) -> None:
    from inaproto_controller.simulate.scenario import pictures
    from inaproto_controller.simulate.scenario.document import document
    from inaproto_controller.simulate.scenario.runs import run_all

    scenario = loaded(tmp_path)
    found = document(scenario, (0,), run_all(scenario, (0,), jobs=1))
    figure = pictures._over_time(found["variants"], 16)
    assert all(tick == int(tick) for axes in figure.axes for tick in axes.get_yticks())


def test_an_undefined_score_is_called_so(tmp_path: Path) -> None:
    page, _ = reported(tmp_path, HOPELESS)
    assert "undefined" in page.texts["td"]
    assert "the score is undefined" in page.words()
    assert "One seed: no confidence intervals." in page.words()


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    assert reported(tmp_path)[1] == reported(tmp_path)[1]


def test_the_example_runs_as_it_is_shown(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("out.json", "report.html", "timeline.svg")]
    options = ["--json", str(files[0]), "--report", str(files[1]), "--timeline", str(files[2])]
    result = CliRunner().invoke(cli, ["simulate", str(EXAMPLE), *options])
    assert result.exit_code == 0, result.output
    found = json.loads(files[0].read_text())
    assert len(found["variants"]) == 3
    scores = [variant["measures"]["score"]["mean"] for variant in found["variants"]]
    assert 0 < min(scores) < max(scores) < 1
    assert found["models"][0]["own"] is True
    assert Page(files[1].read_text(encoding="utf-8")).open == []
    assert files[2].read_text(encoding="utf-8").endswith("</svg>\n")


MANUAL = re.findall(r"```toml\n(.*?)```", (EXAMPLE.parents[1] / "docs/planning.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", [block for block in MANUAL if block.startswith("[controller]")])
def test_settings_of_the_manual_are_right(block: str) -> None:
    settings = ControllerSettings.model_validate(tomllib.loads(block)["controller"])
    assert (settings.trees, settings.host_gbit_s) == ("paring", "25" if "host_gbit_s" in block else "100")


@pytest.mark.parametrize("block", [block for block in MANUAL if not block.startswith("[controller]")])
def test_scenarios_of_the_manual_are_right(block: str, tmp_path: Path) -> None:
    """Each is a whole one, or tables to be added to a whole one."""
    from inaproto_controller.simulate.scenario.scenario import load_scenario

    (tmp_path / "jobs.csv").write_text("arrival_seconds,model,hosts,steps\n0,opt-125m-4,2,10\n")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "mine.json").write_text(
        '{"duration": 0.1, "allreduces": [{"start": 0, "size": 9}]}'
    )
    head = "" if "[cluster]" in block else "[cluster]\ndegree = 8\n"
    jobs = (
        ""
        if re.search(r"^\[\[jobs|^\[stream|process = .log", block, re.MULTILINE)
        else "[stream]\ncount = 3\ntrace = 2\n"
    )
    if jobs:
        head = head.replace("degree = 8", "degree = 16")
    path = tmp_path / "scenario.toml"
    path.write_text(block + head + jobs)
    load_scenario(path)
