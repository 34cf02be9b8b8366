"""Pictures of the controller's page in a real browser, compared with those in ``pictures/``.

The topology and the timeline, with their legends, are compared as pixels with their texts hidden, and the
texts by what they say and where they are anchored: what shape letters have is the machine's, the rest is
ours. Measured with Chromium 150 of Debian 12:

- another font (DejaVu Serif, Sans Mono, Sans Condensed) changes no pixel of them;
- another rasterizer (SwiftShader, with and without multisampling, instead of Skia on the CPU) changes 12 000
  pixels at edges, by up to 111 of 255. Of these, 2 have no pixel within one pixel's reach that differs by at
  most ``LIKE``: a bar that is 3 pixels too far right has 28, a dashed line that is drawn through some 20. The
  mean of any ``BLOCK`` times ``BLOCK`` pixels changes by 16 at most: colours of jobs are 49 apart or more.

So a picture is the same if at most ``UNLIKE_MAX`` pixels are unlike, and no block's mean differs by more than
``MEAN``. New pictures, to be looked at before they are kept:
 ``INAPROTO_NEW_PICTURES=1 pytest tests/controller/test_page_pictures.py``.
"""

from __future__ import annotations

import json
import os
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio
from matplotlib import image
from numpy.typing import NDArray

from tests.controller.headless_browser import Browser, browser, chromium
from tests.controller.live_controllers import LiveController, live_controller
from tests.controller.page_checks import faults
from tests.controller.pictured_cluster import pictured

KEPT: Final = Path(__file__).parent / "pictures"
WIDTH: Final = 1280
LIKE: Final = 64
UNLIKE_MAX: Final = 12
BLOCK: Final = 6
MEAN: Final = 30
FIGURES: Final = ("topology", "timeline")
FONTS: Final = ("", "DejaVu Serif", "DejaVu Sans Mono")
"""Empty: what the machine has for the fonts that the page asks for."""
HIDDEN: Final = (
    "* { color: transparent !important } svg text { fill: transparent !important; stroke: none !important }"
)
TEXTS: Final = """
Object.fromEntries(['topology', 'timeline'].map(name => [name, [
  ...[...document.querySelectorAll(`#${name} text`)].map(e => {
    const words = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    return [words, Number(e.getAttribute('x')), Number(e.getAttribute('y')), getComputedStyle(e).textAnchor];
  }),
  ...[...document.querySelectorAll(`#${name}-legend li`)].map(e => [e.textContent.trim()]),
]]))
"""

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True)
def _program() -> Path:
    return chromium()


def add_style(page: Browser, css: str) -> None:
    page.look(
        f"(s => {{ s.textContent = {json.dumps(css)}; document.head.append(s) }})"
        "(document.createElement('style'))"
    )


def in_font(page: Browser, font: str) -> None:
    if font:
        add_style(page, f"*, svg text {{ font-family: '{font}' !important }}")


def mean_apart(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Of all blocks, in any colour."""
    if one.shape != other.shape:
        return np.inf
    sums = np.pad(one.astype(int) - other, ((1, 0), (1, 0), (0, 0))).cumsum(axis=0).cumsum(axis=1)
    rows = sums[BLOCK:] - sums[:-BLOCK]
    return float(np.abs(rows[:, BLOCK:] - rows[:, :-BLOCK]).max() / BLOCK**2)


def unlike(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """Pixels of ``one`` to which nothing near the same place of ``other`` is like."""
    if one.shape != other.shape:
        return one.size
    rows, columns = np.nonzero((one != other).any(axis=2))
    near = np.pad(other.astype(int), ((1, 1), (1, 1), (0, 0)), mode="edge")
    there = np.stack([near[rows + y, columns + x] for y in range(3) for x in range(3)])
    return int((np.abs(one[rows, columns] - there).max(axis=2).min(axis=0) > LIKE).sum())


@cache
def kept(name: str) -> NDArray[np.uint8]:
    pixels = image.imread(KEPT / f"{name}.png")[:, :, :3]
    colours: NDArray[np.uint8] = np.rint(pixels * 255).astype(np.uint8)
    return colours


def examined(page: Browser, theme: str, seen: Path) -> list[str]:
    """What is wrong with the page that is open; its pictures are left in ``seen``."""
    found = faults(page)
    texts = page.look(TEXTS)
    if "…" in json.dumps(texts, ensure_ascii=False):
        found.append("cut off: a name that there is room for")
    add_style(page, HIDDEN)
    shapes = {name: page.screenshot(f"#{name}-figure") for name in FIGURES}
    if os.environ.get("INAPROTO_NEW_PICTURES"):
        keep(texts, shapes, theme)
    expected = json.loads((KEPT / "texts.json").read_text())
    for name in FIGURES:
        for words in expected[name]:
            if words not in texts[name]:
                found.append(f"{name}: there is no {words}")
        found += [
            f"{name}: there should be no {words}" for words in texts[name] if words not in expected[name]
        ]
        was = kept(f"{name}-{theme}")
        count = max(unlike(was, shapes[name]), unlike(shapes[name], was))
        apart = mean_apart(was, shapes[name])
        if count > UNLIKE_MAX or apart > MEAN:
            image.imsave(seen / f"{name}-{theme}.png", shapes[name])
            what = f"{count} pixels are unlike pictures/{name}-{theme}.png, blocks up to {apart:.0f}"
            found.append(f"{name}: {what}; it is in {seen}")
    return found


def keep(texts: dict[str, Any], shapes: dict[str, NDArray[np.uint8]], theme: str) -> None:
    KEPT.mkdir(exist_ok=True)
    lines = {name: "[\n  " + ",\n  ".join(map(json.dumps, texts[name])) + "\n ]" for name in FIGURES}
    body = ",\n ".join(f"{json.dumps(name)}: {rows}" for name, rows in lines.items())
    (KEPT / "texts.json").write_text(f"{{\n {body}\n}}\n")
    for name, pixels in shapes.items():
        image.imsave(KEPT / f"{name}-{theme}.png", pixels)


async def test_the_page_looks_as_it_should_in_every_font_by_day_and_by_night(
    runtime_dir: Path, tmp_path: Path
) -> None:
    def see(live: LiveController) -> dict[str, list[str]]:
        found = {}
        for theme in ("light", "dark"):
            with browser(tmp_path / theme) as page:
                page.open(live.url, width=WIDTH, height=900, is_dark=theme == "dark")
                for font in FONTS:
                    page.go(live.url + "?refresh_s=0")
                    in_font(page, font)
                    found[f"{theme} {font}"] = examined(page, theme, tmp_path)
        return found

    async with pictured(runtime_dir) as live:
        found = await trio.to_thread.run_sync(see, live)
    assert found == {f"{theme} {font}": [] for theme in ("light", "dark") for font in FONTS}


SVG: Final = "document.querySelector('%s').setAttribute('%s', '%s')"
MOVED: Final = "(e => e.setAttribute('%s', Number(e.getAttribute('%s')) + %s))(document.querySelector('%s'))"
STYLED: Final = "document.querySelector('%s').style.cssText = '%s'"
PLANTED: Final[dict[str, tuple[str, str]]] = {
    "a tree along the wrong link": (SVG % ('.tree[data-link="leaf1 - spine0"]', "x1", "580"), "topology: "),
    "a tree that lacks a link": ("document.querySelector('.tree').remove()", "topology: "),
    "a tree of another job's colour": (SVG % (".tree", "class", "tree c5"), "topology: "),
    "a host of another job": (SVG % ('[data-name="h4"] circle', "class", "node job c1"), "topology: "),
    "a host without its job's number": ("document.querySelector('.host .inside').remove()", "topology: "),
    "a switch that seems to report": (SVG % ('[data-name="spine1"] rect', "class", "node"), "topology: "),
    "a bar 3 pixels too far right": (MOVED % ("x", "x", "3", "#timeline .turn:not(.key)"), "timeline: "),
    "a bar 4 pixels too long": (MOVED % ("width", "width", "4", "#timeline .turn:not(.key)"), "timeline: "),
    "a bar in the wrong lane": (MOVED % ("y", "y", "26", "#timeline .turn:not(.key)"), "timeline: "),
    "an abort that is not shown": ("document.querySelector('[data-kind=aborted]').remove()", "timeline: "),
    "a fallback that is not shown": ("document.querySelector('[data-kind=fallback]').remove()", "timeline: "),
    "a migration that is too short": (SVG % ("#timeline .moving", "width", "20"), "timeline: "),
    "a restart that is not shown": ("document.querySelector('#timeline .leads').remove()", "timeline: "),
    "a tick at the wrong time": (MOVED % ("x", "x", "1", "#timeline text"), "timeline: "),
    "no legend": ("document.querySelector('#timeline-legend').remove()", "timeline: "),
    "a legend that lacks an entry": (
        "document.querySelector('#topology-legend li:last-child').remove()",
        "topology: ",
    ),
    "a legend with the wrong sign": (
        "document.querySelector('#topology-legend .steers').classList.remove('steers')",
        "topology: ",
    ),
    "labels on each other": (MOVED % ("x", "x", "90", '[data-name="h0"] text:last-of-type'), "overlap: "),
    "lines on each other": (STYLED % ("h2", "margin-bottom: -30px"), "overlap: "),
    "a label that is cut off": (MOVED % ("x", "x", "-50", '[data-name="h0"] text:last-of-type'), "cut off: "),
    "a cell that is cut off": (
        STYLED % ("#jobs td:last-child", "display: block; width: 20px; overflow: hidden; white-space: nowrap")
        + ";"
        + STYLED
        % ("#rounds td:last-child", "display: block; width: 20px; overflow: hidden; white-space: nowrap"),
        "cut off: ",
    ),
    "small letters": (STYLED % ("footer", "font-size: 9px"), "too small: "),
    "pale letters": (STYLED % ("footer", "color: #909090"), "too pale: "),
    "a pale shape": (STYLED % ("#timeline .turn", "fill: #cfe0ff"), "too pale: "),
    "a wide table": (STYLED % ("#jobs", "width: 1400px"), "too wide: "),
    "a warning in the console": ("console.warn('something')", "console: "),
    "an exception": ("void setTimeout(() => { throw new Error('wrong') })", "console: "),
    "something from elsewhere": (
        "new Promise(d => { const i = new Image(); i.onerror = () => d(0); i.src = 'http://127.0.0.1:9/x' })",
        "console: ",
    ),
}
"""What is done to the page, and what must be found then."""


async def test_each_fault_that_is_planted_is_found(runtime_dir: Path, tmp_path: Path) -> None:
    def see(live: LiveController) -> dict[str, list[str]]:
        found = {}
        with browser(tmp_path / "browser") as page:
            page.open(live.url, width=WIDTH, height=900)
            for name, (script, _) in PLANTED.items():
                page.go(live.url + "?refresh_s=0")
                page.complaints.clear()
                page.look(script)
                found[name] = examined(page, "light", tmp_path)
        return found

    async with pictured(runtime_dir) as live:
        found = await trio.to_thread.run_sync(see, live)
    missed = [name for name, (_, kind) in PLANTED.items() if not any(f.startswith(kind) for f in found[name])]
    assert not missed, {name: found[name] for name in missed}


async def test_the_page_says_when_it_has_no_connection_and_goes_on_when_it_has(
    runtime_dir: Path, tmp_path: Path
) -> None:
    """What is old is not shown as if it were of now."""
    says = "document.querySelector('#connection').checkVisibility()"
    with browser(tmp_path) as page:
        async with live_controller(runtime_dir) as live:
            url, port = live.url + "?refresh_s=1&window_s=600", int(live.url.rstrip("/").rpartition(":")[2])
            await trio.to_thread.run_sync(partial(page.open, url, width=WIDTH, height=900))
            await live.submit("asked-for-first", 2)
            await trio.to_thread.run_sync(page.until, "document.body.textContent.includes('asked-for-first')")
            fresh = page.look(f"[{says}, document.body.className]")
            complaints = list(page.complaints)
        await trio.to_thread.run_sync(page.until, says)
        stale = page.look("[document.querySelector('#connection').textContent, document.body.className]")
        old = page.look("document.body.textContent.includes('asked-for-first')")
        wrong = [one for one in faults(page) if not one.startswith("console")]
        async with live_controller(runtime_dir, port=port) as live:
            await live.submit("asked-for-later", 2)
            await trio.to_thread.run_sync(page.until, "document.body.textContent.includes('asked-for-later')")
            again = page.look(
                f"[{says}, document.body.className, document.querySelector('#leads').textContent]"
            )
    assert complaints == []
    assert fresh == [False, ""]
    assert stale[0].startswith("No connection to the controller since 22:13:20 UTC, ")
    assert stale[1] == "stale"
    assert old, "what was known is still there to be read"
    assert wrong == []
    assert again == [False, "", "leads, term 2"]
