"""What the root of a fabric tells a controller of trees, through real streams."""

from __future__ import annotations

import logging
import socket
from typing import Final

import pytest
import trio

from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.controller_link import _send
from inaproto.daemon.switch.wished_trees import WishedTrees
from inaproto.wire.messages.controller import AgentWelcome
from inaproto.wire.messages.trees import TreeReport, TreeState

WELCOME: Final = AgentWelcome(term=1, report_ms=1000, trees=True)


def states(jobs: int) -> list[TreeState]:
    """With names of the greatest length."""
    hosts = tuple(f"h{number}".ljust(128, "x") for number in range(64))
    return [TreeState(f"j{number}".ljust(128, "x"), hosts, 1, "standing", "shared") for number in range(jobs)]


async def told(found: list[TreeState]) -> list[TreeReport]:
    here, there = socket.socketpair()
    root, controller = ControlStream(here), ControlStream(there)
    heard: list[TreeReport] = []
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(root.run)
            trees = WishedTrees(lambda wishes: None, lambda: found)
            trees.connected(WELCOME, lambda message: _send(root, message))
            while not heard or heard[-1].more:
                message = await controller.receive()
                assert isinstance(message, TreeReport)
                heard.append(message)
            trees.changed()  # nothing has
            nursery.cancel_scope.cancel()
    root.close()
    controller.close()
    return heard


@pytest.mark.parametrize("jobs", [0, 1, 256])
async def test_all_jobs_are_told_however_many_there_are(jobs: int) -> None:
    """256 of 64 hosts each are 2 MiB, and a message has at most one."""
    found = await told(states(jobs))
    assert [record.job for report in found for record in report.trees] == [one.job for one in states(jobs)]
    assert [report.more for report in found] == [True] * (len(found) - 1) + [False]
    assert (len(found) > 2) == (jobs == 256)


async def test_a_long_reason_is_cut() -> None:
    [report] = await told([TreeState("j", ("h0", "h1"), 1, "parking", reason="\u00e4" * 9000)])
    [record] = report.trees
    assert len(record.reason.encode()) <= 8192
    assert record.reason.startswith("\u00e4" * 1000)


async def test_what_cannot_be_told_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    here, there = socket.socketpair()
    stream = ControlStream(here)
    names = tuple(f"h{number}".ljust(128, "x") for number in range(9000))
    record = TreeState(job="j", hosts=names, epoch=1, phase="standing")
    with caplog.at_level(logging.ERROR):
        _send(stream, TreeReport(term=1, revision=1, trees=(record,)))
    assert "the controller is not told: control tree_report" in caplog.text
    stream.close()
    there.close()
