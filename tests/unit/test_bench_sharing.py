"""What ``inaproto bench sharing`` reports."""

from __future__ import annotations

import json

import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from inaproto_hil.bench.sharing import measure, sharing_bench, wrong_with
from inaproto_hil.bench.sharing_live import step_ms


def test_the_report_has_a_row_for_each_rule_and_weather() -> None:
    report = measure(0, 3)
    rows = {(row["weather"], row["rule"]): row for row in report["rows"]}
    assert set(rows) == {
        (weather, rule) for weather in ("clear", "faults") for rule in ("equal-index", "by-index")
    }
    for (_, rule), row in rows.items():
        assert row["worlds"] == 3
        assert row["rounds"] >= row["committed"]
        assert 0 <= row["abort_rate"] < 1
        assert row["operations"] > 0
        if rule == "by-index":
            assert row["lock_stalls"] == row["lock_stalled_ms"] == 0
            assert row["lock_stall_mean_us"] is None
    assert rows["clear", "by-index"]["jobs"] == rows["clear", "equal-index"]["jobs"]
    assert rows == {(row["weather"], row["rule"]): row for row in measure(0, 3)["rows"]}, "times are virtual"


def test_the_command_prints_json_and_refuses_nonsense() -> None:
    done = CliRunner().invoke(sharing_bench, ["--seeds", "1:2", "--json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["config"]["seeds"] == [1, 2]
    for line in ("rounds per turn", "stall/all-reduce, us", "median of steps, ms"):
        assert line in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert CliRunner().invoke(sharing_bench, ["--seeds", "3:2"]).exit_code == 2


class Steps:
    """Of a job that does one each 100 ms, from a time on."""

    def __init__(self, from_s: float) -> None:
        self.steps_done = [0, 0]
        self._from_s = from_s

    async def run(self) -> None:
        await trio.sleep(self._from_s)
        while True:
            await trio.sleep(0.1)
            self.steps_done = [done + 1 for done in self.steps_done]

    async def past(self, steps: int) -> None:
        while min(self.steps_done) < steps:  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.mark.parametrize(("from_s", "looked_at_s"), [(0.0, 0.0), (0.0, 0.85), (0.0, 3.0), (1.0, 0.0)])
async def test_steps_are_counted_from_when_the_clock_is_read(
    from_s: float, looked_at_s: float, autojump_clock: MockClock
) -> None:
    job = Steps(from_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.run)
        await trio.sleep(looked_at_s)
        assert await step_ms(job, 12) == pytest.approx(100, rel=0.12)
        nursery.cancel_scope.cancel()


def test_wrong_results_and_rows_of_nothing_are_failures() -> None:
    row = {"rule": "by-index", "weather": "live", "operations": 9, "rounds": 3, "wrong": 0}
    assert wrong_with(row) == []
    assert wrong_with(row | {"wrong": 2}) == ["by-index, live: 2 results are wrong"]
    assert len(wrong_with(row | {"operations": 0, "rounds": 0})) == 2
