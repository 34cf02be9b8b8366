"""``inaproto bench congestion``: which scenarios it plays, and how it tells what they came to."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from inaproto_hil.bench.congestion.command import _table, scenarios_of
from inaproto_hil.bench.congestion.drawing import drawing
from inaproto_hil.bench.congestion.scenarios import Kind, Setup, world_of


def row(scenario: str, *, dcqcn: bool, share: float | None) -> dict[str, Any]:
    curve = {"ms": [0.0, 0.25], "all_gbit_s": [1.0, 2.0], "compared_gbit_s": [0.5, 0.5]}
    return {
        "scenario": scenario,
        "dcqcn": dcqcn,
        "kind": scenario.partition(",")[0],
        "others": 3,
        "goodput_gbit_s": 38.25,
        "jain": 0.98 if share else None,
        "of_fair_share": share,
        "queue_bytes_mean": 46_111,
        "queue_bytes_99": 209_410,
        "marked": 10_751,
        "cnps": 1682,
        "lost": 0,
        "curve": curve | {"queue_bytes": [0.0, 9000.0]},
    }


ROWS = [
    row("shared, 16 of 16", dcqcn=True, share=0.768),
    row("shared, 16 of 16", dcqcn=False, share=None),
    row("incast", dcqcn=True, share=None),
]


def test_each_scenario_is_played_with_and_without_dcqcn() -> None:
    found = scenarios_of(64, list(Kind))
    assert [one.dcqcn for one in found] == [True, False] * (len(found) // 2)
    assert [one.name for one in found if one.dcqcn] == [
        "incast",
        "ring",
        "racks",
        *(f"{kind}, {links} of 16" for kind in ("plain", "shared") for links in (1, 4, 16)),
    ]


def test_what_is_compared_differs_in_one_flow_for_each_bottleneck() -> None:
    setup = Setup()
    for plain, shared in zip(scenarios_of(64, [Kind.PLAIN]), scenarios_of(64, [Kind.SHARED]), strict=True):
        of_plain, of_shared = world_of(plain, setup), world_of(shared, setup)
        more = set(of_plain.flows) - set(of_shared.flows)
        assert set(of_shared.flows) < set(of_plain.flows)
        assert len(more) == plain.bottlenecks
        assert {(flow.sender + 1) % 16 for flow in more} == {flow.receiver for flow in more}
        assert (len(of_plain.jobs), len(of_shared.jobs)) == (0, 1)
        assert (of_plain.congestion is not None) == plain.dcqcn


def test_the_table_fits_80_columns() -> None:
    console = Console(width=80)
    with console.capture() as said:
        console.print(_table(ROWS))
    text = said.get()
    assert "…" not in text
    words = [line.split() for line in text.splitlines()]
    of_all = ["shared,", "16", "of", "16"]
    assert [*of_all, "on", "38.2", "0.980", "0.768", "46", "209", "10,751", "1,682", "0"] in words
    assert [*of_all, "off", "38.2", "-", "-", "46", "209", "10,751", "1,682", "0"] in words


def test_the_picture_is_a_png_or_an_svg() -> None:
    report = {"rows": ROWS, "config": {"rate_bps": 40 * 10**9}}
    assert drawing(report).startswith(b"\x89PNG")
    assert b"<svg" in drawing(report, "svg")
