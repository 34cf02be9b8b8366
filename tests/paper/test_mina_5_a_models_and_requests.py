"""MINA's traces, step times and requests, against what its published simulator answers (data/mina)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError
from inaproto_controller.cluster.model import CLUSTER, EVALUATED, SHARING, measured, measured_names
from inaproto_controller.cluster.requests import HISTOGRAMS, draw_requests
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_hil.evaluation.mina.published import published
from tests.data.mina.reference import reference


def test_all_measured_models_are_there() -> None:
    assert len(measured_names()) == 13
    totals = {
        name: (len(measured(name).nbytes), round(sum(measured(name).nbytes) / 1e6)) for name in EVALUATED
    }
    assert totals["opt-125m-4"] == (13, 501)
    assert totals["bert-base-4"] == (14, 438)
    assert [count for count, _ in totals.values()] == [13, 38, 97, 14, 38, 14, 38]


def test_an_isolated_step_takes_what_it_takes_in_the_published_simulator() -> None:
    for case in reference("ref01_step_durations")["cases"]:
        speeds = Speeds(case["bandwidth_Bps"], case["ina_ratio"], case["latency_s"], case["gpu_speedup"])
        assert speeds == {"cluster": CLUSTER, "sharing": SHARING}[case["config"]]
        times = StepTimes(measured(case["model"]), speeds, hosts=case["hosts"])
        assert times.step_plain == pytest.approx(case["step_plain"], rel=1e-12, abs=0)
        assert times.step_ina == pytest.approx(case["step_ina"], rel=1e-12, abs=0)


def test_a_plain_step_over_bandwidth_is_that_of_figure_5() -> None:
    for model, points in published("ref02_bandwidth_curve")["curve"].items():
        for bandwidth, expected in points:
            times = StepTimes(measured(model), Speeds(bandwidth, 1.0, 0.0), hosts=2)
            assert times.step_plain == pytest.approx(expected, rel=1e-12, abs=0)


@given(
    name=st.sampled_from(EVALUATED),
    speeds=st.sampled_from([CLUSTER, SHARING, replace(SHARING, bandwidth=1e9)]),
    at=st.floats(0, 2),
    data=st.data(),
)
def test_the_rest_of_a_step_in_max_plus_form_is_the_recurrence(
    name: str, speeds: Speeds, at: float, data: st.DataObject
) -> None:
    times = StepTimes(measured(name), speeds, hosts=4)
    first = data.draw(st.integers(0, times.count))
    for each, tail, floor in (
        (times.plain, times.tail_plain, times.floor_plain),
        (times.ina, times.tail_ina, times.floor_ina),
    ):
        end = at
        for start, time in zip(times.ready[first:], each[first:], strict=True):
            end = max(end, start) + time
        assert max(at + tail[first], floor[first]) == pytest.approx(max(end, times.duration), rel=1e-12)


def test_the_published_streams_of_requests_are_drawn_again() -> None:
    published = reference("workloads_2000x10")
    assert tuple(published["models"]) == EVALUATED
    for trace, rows in published["traces"].items():
        drawn = draw_requests(HISTOGRAMS[int(trace)], len(rows))
        assert [[EVALUATED.index(one.model), one.hosts, one.steps] for one in drawn] == rows


def test_a_trace_that_is_none_says_why() -> None:
    with pytest.raises(ConfigError, match="there are bert-base-16"):
        measured("gpt-9")
    with pytest.raises(ConfigError, match="duration"):
        ModelTrace.decode("mine", {"allreduces": []})
    with pytest.raises(ConfigError, match="ascend"):
        ModelTrace.decode(
            "mine", {"duration": 1, "allreduces": [{"start": 2, "size": 1}, {"start": 1, "size": 1}]}
        )
