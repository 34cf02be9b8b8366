"""Arrivals: Poisson processes by their statistics, logs by what they say."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from math import exp, inf, nan
from pathlib import Path

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.requests import HISTOGRAMS, Request, draw_requests
from inaproto_controller.simulate.arrivals import FIELDS, Log, at_once, parse_csv, parse_json, poisson, read

CSV = """arrival_seconds,model,hosts,steps
0,opt-125m-4,4,10
0,bert-base-4,1,20
1.5,vit-base-4,16,100
"""
JSON = """[
  {"arrival_seconds": 0, "model": "opt-125m-4", "hosts": 4, "steps": 10},
  {"arrival_seconds": 0, "model": "bert-base-4", "hosts": 1, "steps": 20},

  {"arrival_seconds": 1.5, "model": "vit-base-4", "hosts": 16, "steps": 100}
]
"""
LOG = Log(
    (0.0, 0.0, 1.5),
    (Request("opt-125m-4", 4, 10), Request("bert-base-4", 1, 20), Request("vit-base-4", 16, 100)),
)


def test_all_at_once() -> None:
    assert at_once(3) == (0.0, 0.0, 0.0)


def test_poisson_arrivals_are_as_far_apart_as_their_rate_says() -> None:
    """Mean, and the share of gaps longer than it, 1/e; bounds of four standard deviations."""
    arrivals = poisson(40_000, rate=8.0, seed=7)
    gaps = [later - earlier for earlier, later in pairwise((0.0, *arrivals))]
    assert min(gaps) >= 0
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 8, rel=4 / 200)
    assert sum(gap > 1 / 8 for gap in gaps) / len(gaps) == pytest.approx(exp(-1), abs=4 * 0.482 / 200)


def test_poisson_arrivals_depend_on_the_seed_alone() -> None:
    one = poisson(50, rate=2.0, seed=1)
    assert poisson(50, rate=2.0, seed=1) == one != poisson(50, rate=2.0, seed=2)
    assert poisson(60, rate=2.0, seed=1)[:50] == one
    assert poisson(50, rate=4.0, seed=1) == pytest.approx([seconds / 2 for seconds in one])


@pytest.mark.parametrize("rate", [0, -1, inf, nan])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        poisson(1, rate=rate, seed=1)


def test_logs_of_both_kinds(tmp_path: Path) -> None:
    for name, text in {"log.csv": CSV, "log.json": JSON}.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name) == LOG
    (tmp_path / "log.csv").write_text("\ufeffsteps, hosts,model,arrival_seconds\n10,4,opt-125m-4,0\n\n")
    assert read(tmp_path / "log.csv") == Log((0.0,), LOG.requests[:1])
    assert parse_json(" [ ] ") == Log((), ())


def test_what_is_written_is_read_again() -> None:
    requests = draw_requests(HISTOGRAMS[1], 200)
    arrivals = poisson(200, rate=0.7, seed="log")
    rows = [dict(zip(FIELDS, (at, *one), strict=True)) for at, one in zip(arrivals, requests, strict=True)]
    assert (
        parse_json(json.dumps(rows))
        == parse_json(json.dumps(rows, indent=1))
        == Log(arrivals, tuple(requests))
    )
    written = io.StringIO()
    table = csv.DictWriter(written, FIELDS)
    table.writeheader()
    table.writerows(rows)
    assert parse_csv(written.getvalue()) == Log(arrivals, tuple(requests))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hosts", "host", "line 1: .*the columns are"),
        (CSV, "", "line 1: "),
        ("4,10", "4", "line 2: 3 columns, not 4"),
        ("4,10", "four,10", "line 2: hosts 'four': an integer"),
        ("4,10", "0,10", "line 2: hosts 0"),
        ("1,20", "1,-2", "line 3: steps -2"),
        ("1.5", "inf", "line 4: arrival_seconds inf"),
        ("1.5", "", "line 4: arrival_seconds ''"),
        ("0,bert", "2,bert", "line 4: arrival_seconds 1.5: before that of the request above, 2.0"),
        ("bert-base-4", "bert-base-5", "line 3: no model 'bert-base-5'; there are bert-base-16"),
        ("bert-base-4", '"bert', "line 4: "),
    ],
)
def test_a_bad_csv_names_its_line(old: str, new: str, message: str) -> None:
    assert old in CSV
    with pytest.raises(ConfigError, match=message):
        parse_csv(CSV.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"hosts": 1,', "", "line 3: an object with arrival_seconds, model, hosts, steps"),
        ('"hosts": 1,', '"hosts": 1, "users": 2,', "line 3: an object with"),
        ('"hosts": 1,', '"hosts": true,', "line 3: hosts True"),
        ('"hosts": 16,', '"hosts": 1.0,', "line 5: hosts 1.0"),
        ("1.5", "NaN", "line 5: arrival_seconds nan"),
        ("1.5", '"1.5"', "line 5: arrival_seconds '1.5'"),
        ('"bert-base-4"', "7", "line 3: no model 7"),
        ("20},", "20}", "line 5: Expecting ',' or ']'"),
        ("100}", "100", "line 6: Expecting ',' delimiter"),
        ("100}", "100},", "line 6: Expecting value"),
        ("]", "] []", "line 6: Extra data"),
        ("[", "{", "line 1: Expecting a list"),
        (JSON, "", "line 1: Expecting a list"),
        (JSON, "[" * 100_000, "brackets"),
        ("16", "9" * 5000, "line 5: .*digits"),
    ],
)
def test_a_bad_json_names_its_line(old: str, new: str, message: str) -> None:
    assert old in JSON
    with pytest.raises(ConfigError, match=message):
        parse_json(JSON.replace(old, new, 1))


def test_times_of_the_day_and_endless_jobs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"line 4: arrival_seconds 1732147200\.0: .* start of the log"):
        parse_csv(CSV.replace("1.5", "1732147200"))
    with pytest.raises(ConfigError, match=r"line 5: arrival_seconds 9{400}: at most"):
        parse_json(JSON.replace("1.5", "9" * 400))
    with pytest.raises(ConfigError, match="line 4: steps 1000001: at most 1000000"):
        parse_csv(CSV.replace("16,100", "16,1000001"))


def test_logs_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(CSV)
    (tmp_path / "log.csv").write_bytes(CSV.encode() + b"2,\xff,1,1\n")
    (tmp_path / "log.json").write_text(JSON.replace("16", "0"))
    for name, message in {
        "none.csv": "No such file",
        "log.txt": "is read by the ending of its name, .csv or .json",
        "log.csv": "line 5: no UTF-8",
        "log.json": "log.json: line 5: hosts 0",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read(tmp_path / name)


def test_models_may_be_others_than_the_measured_ones() -> None:
    text = CSV.replace("bert-base-4", "mine")
    assert parse_csv(text, models=["mine", "opt-125m-4", "vit-base-4"]).requests[1].model == "mine"
