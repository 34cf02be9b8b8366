"""``inaproto bench verbs``: what a host daemon does for a message on a RoCE card, without the card.

Timed are the host's part of a job, its link and the NIC above a device that does nothing, from the poll that
finds a result to the requests that follow from it. Requests and completions are pyverbs' own objects where
it is installed. Not timed: what the device, the kernel and the neighbour do, and the event loop's wake-up.

A *wake-up* finds so many results at once: one, where the daemon waits for the link, or a window of them,
where the link waits for the daemon. With copies results are also written from the slots where they came into
the tensor, which costs memory's time, not Python's.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.table import Table

from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.option_types import ReportFile, write_report
from inaproto_hil.bench.verbs.device import StubbedDevice
from inaproto_hil.bench.verbs.host import Shape, StubbedHost
from inaproto_hil.rigs import environment

VERSION: Final = 1
GOAL_US: Final = 20.0
"""Goal for a message of a busy link, without copies."""
_WARM_UP: Final = 3
_US: Final = 1000


@dataclass(frozen=True, slots=True)
class Config:
    mtu: int
    packets: int
    window: int
    messages: int
    """Of an all-reduce."""
    rounds: int
    """All-reduces of each row, in turn."""


class _Row:
    """A host with its own device."""

    def __init__(self, config: Config, wake_up: int, *, copies: bool) -> None:
        self.wake_up = wake_up
        self.copies = copies
        self.device = StubbedDevice()
        self._messages = config.messages
        with self.device.installed():
            shape = Shape(config.mtu, config.packets, config.window)
            self.host = StubbedHost(shape, self.device, config.messages, copies=copies)
        self.us: list[float] = []
        """A message, by all-reduce."""

    def measure(self) -> None:
        """An all-reduce, behind one that brings its part of the caches back: others had their turns."""
        with self.device.installed():
            self._all_reduce()
            self.us.append(self._all_reduce() / self._messages / _US)

    def _all_reduce(self) -> int:
        """Nanoseconds of the processor: what others take of it is not in them."""
        host = self.host
        self.device.calls.clear()
        began = time.thread_time_ns()
        host.call()
        spent = time.thread_time_ns() - began
        while host.answer(self.wake_up):
            began = time.thread_time_ns()
            host.take()
            spent += time.thread_time_ns() - began
        return spent

    def forget(self) -> None:
        """What was measured by now was a warm-up."""
        self.us.clear()

    def record(self) -> dict[str, Any]:
        """For ``json.dump``: calls of the device are those of the last all-reduce."""
        return {
            "results_a_wake_up": self.wake_up,
            "copies": self.copies,
            "us_a_message": {
                "median": round(statistics.median(self.us), 2),
                "least": round(min(self.us), 2),
                "most": round(max(self.us), 2),
            },
            "device_calls_a_message": {
                name: round(count / self._messages, 3) for name, count in sorted(self.device.calls.items())
            },
        }


async def _measure(config: Config) -> list[_Row]:
    rows = [
        _Row(config, wake_up, copies=copies)
        for wake_up in dict.fromkeys((config.window, 1))
        for copies in (False, True)
    ]
    for done in range(_WARM_UP + config.rounds):
        if done == _WARM_UP:
            for row in rows:
                row.forget()
        for row in rows:
            row.measure()
    for row in rows:
        with row.device.installed():
            row.host.ring.close()
            await row.host.nic.aclose()
    return rows


def document(config: Config, rows: list[_Row]) -> dict[str, Any]:
    """For ``json.dump``."""
    return {
        "version": VERSION,
        "benchmark": "verbs",
        "config": asdict(config),
        "env": environment.describe(),
        "pyverbs_objects": rows[0].device.is_real,
        "goal_us": GOAL_US,
        "rows": [row.record() for row in rows],
    }


@click.command()
@click.option("--mtu", type=click.Choice([str(one) for one in MTUS]), default="4096", show_default=True)
@click.option("--packets", type=click.IntRange(1, 4096), default=170, show_default=True, help="Of a message.")
@click.option(
    "--window", type=click.IntRange(1, 256), default=8, show_default=True, help="Messages in flight: 2^n."
)
@click.option(
    "--messages", type=click.IntRange(1, 4096), default=64, show_default=True, help="An all-reduce."
)
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True, help="All-reduces of a row.")
@click.option(
    "--json",
    "json_file",
    type=ReportFile(),
    metavar="FILE",
    help="Write the report there; - is standard output.",
)
def verbs_bench(
    mtu: str, packets: int, window: int, messages: int, rounds: int, json_file: str | None
) -> None:
    """Python of a host daemon for a message on a RoCE card, over a device that does nothing.

    Rows take turns. What no card does here is not in it: see docs/performance.md.
    """
    if window & (window - 1):
        raise click.BadParameter("must be a power of two", param_hint="--window")
    config = Config(int(mtu), packets, window, messages, rounds)
    report = document(config, trio.run(_measure, config))
    Console(stderr=json_file == "-").print(_table(report))
    write_report(report, json_file)


def _table(report: dict[str, Any]) -> Table:
    config = report["config"]
    table = Table(
        "results a wake-up", "copies", "µs a message", "least", "completions", "calls of the device",
        title=f"Python for a message of {config['packets']} x {config['mtu']} bytes, N = {config['window']}",
    )  # fmt: skip
    for row in report["rows"]:
        calls, us = row["device_calls_a_message"], row["us_a_message"]
        device = sum(calls.get(name, 0) for name in ("poll", "post_send", "post_recv"))
        table.add_row(
            str(row["results_a_wake_up"]), "yes" if row["copies"] else "no", f"{us['median']:.1f}",
            f"{us['least']:.1f}", f"{calls['completions']:.2f}", f"{device:.2f}",
        )  # fmt: skip
    made = "pyverbs' objects" if report["pyverbs_objects"] else "objects of Python in place of pyverbs' own"
    table.caption = f"medians of {config['rounds']} all-reduces; {made}"
    return table
