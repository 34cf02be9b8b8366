"""``inaproto status`` for people: few columns, no raw records, nothing that is zero."""

from __future__ import annotations

from rich.console import Console

from inaproto.daemon.status import Report
from inaproto.daemon.status_tables import show_report

RING = {
    "job": "train",
    "rank": 0,
    "size": 2,
    "pid": 42,
    "phase": "running",
    "waiting_for": [1],
    "stall": "waits for rank 1",
    "operations_done": 7,
    "operations_queued": 1,
    "peers": ["h0", "h1"],
    "operation": {"op_index": 7, "nbytes": 8},
}
HOST = {
    "name": "h0",
    "ip": "10.0.0.1",
    "switch": {"connected": True, "path": "/run/inaproto"},
    "rings": [RING],
    "nic": {"packets_sent": 12, "naks_sent": 0},
}


def test_a_host_s_ranks_fit_a_narrow_terminal() -> None:
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(Report(switch=None, hosts=[HOST], problems=[])))
    text = capture.get()
    assert "train" in text
    assert "0 of 2" in text
    assert "rank 1" in text
    assert "rank 0 of train: waits for rank 1" in text
    assert "packets_sent 12" in text
    assert "naks_sent" not in text
    assert "[" not in text, "no raw lists"
    assert "…" not in text, "nothing is cut"
