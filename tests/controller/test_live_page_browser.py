"""The controller's page in a real browser: pictures are where they should be, and nothing overflows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto_controller.pictures.job_colours import colour_of
from tests.controller.headless_browser import Browser, browser, chromium
from tests.controller.live_controllers import HOSTS, LiveController, live_controller, turn
from tests.controller.page_checks import faults

WIDTH = 1280
NARROW = (390, 768)
"""Of a phone and of a tablet."""
BOXES = """
Object.fromEntries([...document.querySelectorAll(%s)].map(e => {
  const b = e.getBoundingClientRect();
  return [e.dataset.name || e.id || e.dataset.job + b.x + ',' + b.y,
          [b.left + scrollX, b.top + scrollY, b.right + scrollX, b.bottom + scrollY]];
}))
"""
OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(e => {
  const b = e.getBoundingClientRect();
  return b.width && !e.closest('.scroll > *') && (b.right > innerWidth + 0.5 || b.left < -0.5);
}).map(e => e.outerHTML.slice(0, 200))
"""

pytestmark = pytest.mark.timeout(400)


def boxes(page: Browser, selector: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = page.look(BOXES % json.dumps(selector))
    return found


def narrow(page: Browser, url: str, width: int) -> dict[str, Any]:
    """The page on another screen."""
    page.open(url + "?refresh_s=0", width=width, height=844)
    return {
        "faults": faults(page),
        "scroll": page.look("[document.documentElement.scrollWidth, innerWidth]"),
        "labels": page.look(
            "Math.min(...[...document.querySelectorAll('#topology text')].map(e => "
            "parseFloat(getComputedStyle(e).fontSize) * e.closest('svg').getBoundingClientRect().width"
            " / e.closest('svg').viewBox.baseVal.width))"
        ),
        "cells": page.look(
            "[...document.querySelectorAll('#jobs tbody tr:first-child td')].map(e => "
            "getComputedStyle(e, '::before').content)"
        ),
    }


async def shown(live: LiveController, directory: Path, widths: Sequence[int] = NARROW) -> dict[str, Any]:
    """Everything that the tests ask of the page, from one start of the browser."""

    def see() -> dict[str, Any]:
        with browser(directory) as page:
            page.open(live.url + "?refresh_s=0", width=WIDTH, height=900)
            return {
                "nodes": boxes(page, "#topology g[data-name]"),
                "marks": boxes(page, "#topology .node"),
                "pictures": boxes(page, "#topology, #timeline"),
                "colours": page.look(
                    "Object.fromEntries([...document.querySelectorAll('#topology .node')].map(e => "
                    "[e.parentElement.dataset.name, [...e.classList].find(c => /^c\\d/.test(c)) || '']))"
                ),
                "circles": page.look(
                    "[...document.querySelectorAll('#topology circle, #topology rect')].map(e => {"
                    "const b = e.getBoundingClientRect();"
                    "return [e.parentElement.dataset.name, b.x + b.width / 2, b.y + b.height / 2]})"
                ),
                "turns": page.look(
                    "[...document.querySelectorAll('#timeline .turn:not(.key)')].map(e => {"
                    "const b = e.getBoundingClientRect();"
                    "return [b.left, b.top, b.right, b.bottom, [...e.classList].find(c => /^c\\d/.test(c))]})"
                ),
                "trees": page.look(
                    "[...document.querySelectorAll('#topology .tree')].map(e => e.dataset.job)"
                ),
                "overflowing": page.look(OVERFLOWING),
                "scroll": page.look("[document.documentElement.scrollWidth, innerWidth]"),
                "scripts": page.look("document.scripts.length"),
                "faults": faults(page),
                "narrow": {width: narrow(page, live.url, width) for width in widths},
            }

    found: dict[str, Any] = await trio.to_thread.run_sync(see)
    return found


@pytest.fixture(autouse=True)
def _program() -> Path:
    return chromium()


async def test_topology_and_timeline_are_where_they_should_be(runtime_dir: Path, tmp_path: Path) -> None:
    async with live_controller(runtime_dir) as live:
        await live.start_agents()
        await live.submit("train", 4)
        job = await live.runs("train")
        await live.submit("long-" + "n" * 58, 4)
        other = await live.until("long-" + "n" * 58, lambda one: bool(one.hosts))
        await live.submit("waits", 8)
        await live.until("waits", lambda one: bool(one.why))
        for epoch in range(1, 9):
            turn(live, "pool 1", ("train", "long-" + "n" * 58)[epoch % 2], epoch, ends=epoch < 8)
        live.history.fell_back("train", "port to the switch above is down " * 20)
        found = await shown(live, tmp_path)

    assert found["faults"] == []
    for width, there in found["narrow"].items():
        assert there["faults"] == [], width
        assert there["scroll"] == [width, width]
        assert there["labels"] >= 11, "as large as on a desk; the picture is scrolled instead"
        assert {'"job"', '"state"', '"why"'} <= set(there["cells"]), "each cell says what it is"
    assert found["scripts"] == 0, "a page that stays as it is needs none"
    assert found["overflowing"] == []
    assert found["scroll"] == [WIDTH, WIDTH]
    nodes, (topology, line) = found["nodes"], (found["pictures"][name] for name in ("topology", "timeline"))
    assert nodes.keys() == {*HOSTS, "leaf0", "leaf1", "leaf2", "leaf3", "spine0", "spine1"}
    for name, box in nodes.items():
        assert topology[0] <= box[0] < box[2] <= topology[2], name
        assert topology[1] <= box[1] < box[3] <= topology[3], name
    middles = {name: (x, y) for name, x, y in found["circles"]}
    assert [middles[host][0] for host in HOSTS] == sorted(middles[host][0] for host in HOSTS)
    assert len({middles[host][1] for host in HOSTS}) == 1
    assert middles["spine0"][1] < middles["leaf0"][1] < middles["h0"][1], "hosts are lowest"
    assert middles["h0"][0] < middles["leaf0"][0] < middles["h1"][0], "a switch is above its hosts"
    for one in (job, other):
        for host in one.hosts:
            assert found["colours"][host] == f"c{colour_of(one.number)}", "hosts have the colour of their job"
    assert job.tree is not None
    assert found["trees"].count("train") == len(job.tree.links)
    assert len(found["turns"]) == 8
    for left, top, right, bottom, fill in found["turns"]:
        assert line[0] <= left < right <= line[2]
        assert line[1] <= top < bottom <= line[3]
        assert fill in {f"c{colour_of(job.number)}", f"c{colour_of(other.number)}"}
    rows = sorted({top for _, top, *_ in found["turns"]})
    assert len(rows) == 2, "a row for each job"


async def test_a_crowded_page_overflows_nowhere(runtime_dir: Path, tmp_path: Path) -> None:
    hosts = [f"a-host-with-a-long-name-{number:03}.rack.example.org" for number in range(200)]
    cluster = {
        "hosts": hosts,
        "switches": [{"name": f"leaf-{leaf}-{'x' * 200}", "jobs": 1} for leaf in range(20)]
        + [{"name": "<b>spine</b>", "jobs": 1}],
        "links": [
            *({"between": [host, f"leaf-{n % 20}-{'x' * 200}"]} for n, host in enumerate(hosts)),
            *({"between": [f"leaf-{leaf}-{'x' * 200}", "<b>spine</b>"]} for leaf in range(20)),
        ],
    }
    async with live_controller(runtime_dir, cluster) as live:
        for host in hosts[:90]:
            live.agent("host", host)
        for number in range(40):
            await live.submit(f"job-{number}-{'W' * 50}", 2)
        await live.until(f"job-39-{'W' * 50}", lambda job: bool(job.hosts))
        for epoch in range(1, 60):
            turn(live, "p" * 300, f"job-{epoch % 40}-{'W' * 50}", epoch)
        live.history.fell_back("x" * 300, "y" * 300)
        found = await shown(live, tmp_path, NARROW[:1])
    assert found["faults"] == []
    assert found["overflowing"] == []
    assert found["scroll"] == [WIDTH, WIDTH]
    for width, there in found["narrow"].items():
        assert (there["faults"], there["scroll"]) == ([], [width, width])
    topology = found["pictures"]["topology"]
    assert all(topology[0] <= box[0] and box[2] <= topology[2] for box in found["marks"].values())
    assert set(found["nodes"]) >= {"<b>spine</b>"}
