"""``inaproto status`` for people: few columns, no raw records, nothing that is zero."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from inaproto.daemon.observe.status import Report, missing
from inaproto.daemon.observe.status_tables import show_report

RING = {
    "job": "train",
    "ranks": [{"rank": 0, "pid": 42}],
    "size": 2,
    "phase": "running",
    "waiting_for": [1],
    "stall": "waits for rank 1",
    "operations_done": 7,
    "operations_queued": 1,
    "peers": ["h0", "h1"],
    "operation": {"op_index": 7, "nbytes": 8},
    "operations_by_path": {"chain": 4, "switch": 3},
}
HOST = {
    "name": "h0",
    "ip": "10.0.0.1",
    "switch": {"connected": True, "path": "/run/inaproto"},
    "rings": [RING],
    "nic": {"packets_sent": 12, "packets_received": 3, "bytes_received": 96, "naks_sent": 0, "timeouts": 2},
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
    assert "rank 0 of train, all-reduces by path: chain 4, switch 3" in text
    assert "nic: 12 packets sent, 0 bytes; 3 packets received, 96 bytes" in text
    assert "nic, out of the ordinary: timeouts 2" in text
    assert "naks_sent" not in text
    assert "recoveries" not in text, "a column that says nothing"
    assert "[" not in text, "no raw lists"
    assert "…" not in text, "nothing is cut"


ROOT: dict[str, Any] = {
    "name": "spine",
    "dir": "/run/inaproto",
    "pid": 1,
    "uptime_s": 5.0,
    "boot_id": "b0",
    "weather": "clear",
    "totals": dict.fromkeys(
        ("frames_in", "frames_out", "frames_lost", "frames_duplicated", "frames_reordered"), 0
    ),
    "hosts": ["h0"],
    "ports": [],
    "jobs": [],
    "accelerator": {"counters": {}},
    "blames": {},
    "fabric": {
        "switches": [
            {
                "name": name,
                "above": above,
                "dir": f"/run/{name}",
                "aggregates": name != "leaf1",
                "is_present": name == "spine",
                "is_open": name == "spine",
                "since_s": since_s,
                "error": error,
            }
            for name, above, since_s, error in (
                ("spine", None, 5.0, ""),
                ("leaf0", "spine", 2.0, "its control connection was closed by its peer"),
                ("leaf1", "spine", None, ""),
            )
        ],
        "rings": [
            {"ring_id": 77, "phase": "installing", "switches": ["spine", "leaf0"], "missing": ["leaf0"]}
        ],
        "counters": {"trees_made": 3, "trees_refused": 0, "switches_lost": 1},
    },
    "trunks": [
        {
            "switch": "leaf0",
            "way": "down",
            "port": 1,
            "is_up": False,
            "since_s": 2,
            "times_up": 1,
            "error": "gone",
        }
    ],
}


def shown(status: dict[str, object]) -> str:
    report = Report(hosts=[status]) if "nic" in status else Report(switch=status)
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(report))
    return capture.get()


def test_a_ring_that_is_parked_is_said_on_its_host_and_at_the_root() -> None:
    host = HOST | {"rings": [RING | {"is_parked": True}]}
    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(Report(switch=None, hosts=[host], problems=[])))
    assert "rank 0 of train, its ring through the switches is parked: its tree moves" in capture.get()
    tree = {"job": "train", "hosts": ["h0"], "epoch": 3, "phase": "parking", "pool": "shared"}
    moving = tree | {"reason": "waits for h1"}
    home = tree | {"epoch": 0, "phase": "standing", "reason": ""}
    text = shown(ROOT | {"trees": [moving, home]})
    assert "the tree of job train is parking in pool shared (wish 3): waits for h1" in text
    assert text.count("the tree of job") == 1, "where nothing is wished it stands as ever"


def test_the_root_shows_its_fabric() -> None:
    text = shown(ROOT)
    assert "switch spine in /run/inaproto" in text
    for line in (
        "leaf0 is away: its control connection was closed by its peer",
        "trunk to leaf0: gone",
        "trees: trees_made 3, switches_lost 1",
    ):
        assert line in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "spine - here 5 s /run/spine" in rows
    assert "leaf0 spine away 2 s /run/leaf0" in rows
    assert "leaf1 spine away, steers - /run/leaf1" in rows
    assert "77 installing spine, leaf0 leaf0" in rows
    assert "leaf0 down 1 down 2 s 1" in rows


def test_rings_are_called_by_their_jobs_and_names_are_not_cut_off() -> None:
    """On a terminal of 80 columns."""
    name = "a-job-with-a-name-of-62-letters-" + "x" * 30
    ranks = [{"rank": rank, "host": f"h{rank}", "pid": 7} for rank in range(20)]
    job = {"name": name, "phase": "running", "ring_id": 77, "ina_ring_id": 78, "path": "shared"}
    job |= {"recoveries": 0, "ranks": ranks, "missing": [3], "fallback": "", "last_recovery": ""}
    pool = {"rings": [78, 99], "memory_bytes": 1, "takeovers": 5, "conflicts": 0, "stale": 0}
    pools = {"shared": pool | {"holders": [78], "epochs": [4], "capacity": 1}}
    leaf = ROOT | {"name": "leaf0", "accelerator": {"counters": {}, "pools": pools}}
    console = Console(width=80, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(Report(switch=ROOT | {"jobs": [job]}, other_switches=[leaf])))
    text = capture.get()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    squeezed = "".join(text.split())
    assert "and4more" in squeezed
    lines = text.splitlines()
    pools_at = next(at for at, line in enumerate(lines) if line.startswith("shared "))
    assert "a-job" in lines[pools_at], "of the leaf, which knows rings alone"
    trees = lines[lines.index(next(line for line in lines if line.strip() == "trees")) :]
    assert trees[2].startswith(name[:20])


def test_a_switch_shows_its_pools_and_whose_turn_it_is() -> None:
    pool = {"rings": [7, 9], "memory_bytes": 640, "takeovers": 5, "conflicts": 1, "stale": 2, "capacity": 2}
    pools = {"group 3": pool | {"holders": [9, None], "epochs": [4, -1]}}
    rows = [
        " ".join(line.split())
        for line in shown(ROOT | {"accelerator": {"counters": {}, "pools": pools}}).splitlines()
    ]
    assert "pool jobs its turn epoch bytes turns conflicts stale" in rows
    assert "group 3 7, 9 9, nobody's 4, - 640 5 1 2" in rows


def test_the_root_shows_trunks_rings_that_wait_and_whom_it_refuses() -> None:
    (spine, leaf0, leaf1) = ROOT["fabric"]["switches"]
    trunk = {"is_up": False, "error": "nobody listens there", "since_s": 4.0}
    ring = {
        "ring_id": 78,
        "phase": "waiting",
        "switches": [],
        "missing": [],
        "waits_for": "no trunk",
    }
    fabric = ROOT["fabric"] | {
        "switches": [
            spine | {"trunk": None},
            leaf0 | {"is_present": True, "is_open": True, "error": "", "trunk": trunk},
            leaf1 | {"is_present": True, "is_open": True, "trunk": trunk | {"is_up": True, "error": ""}},
        ],
        "rings": [ring],
        "refused": [{"switch": "leaf7", "reason": "switch 'leaf7' is not below spine", "since_s": 0.5}],
    }
    trunks = [ROOT["trunks"][0] | {"is_up": True, "error": "", "refused": "the far side is leaf1"}]
    text = shown(ROOT | {"fabric": fabric, "trunks": trunks})
    for line in (
        "leaf0 sums for no other switch, its trunk to spine is down: nobody listens there",
        "ring 78 waits: no trunk",
        "refused 0 s ago: switch 'leaf7' is not below spine",
        "trunk to leaf0, not taken: the far side is leaf1",
    ):
        assert line in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "spine - here 5 s /run/spine" in rows
    assert "leaf0 spine no trunk 2 s /run/leaf0" in rows
    assert "leaf1 spine here, steers - /run/leaf1" in rows
    assert "leaf1 sums for no other" not in text


def test_the_root_shows_further_links_and_roots() -> None:
    (spine, leaf0, leaf1) = ROOT["fabric"]["switches"]
    here = {"is_present": True, "is_open": True, "error": "", "trunk": {"is_up": True, "error": ""}}
    up, down = {"is_up": True, "error": ""}, {"is_up": False, "error": "lost"}
    switches = [
        spine | {"trunk": None, "further": [], "is_further_root": False},
        spine
        | {"name": "spine1", "trunk": None, "dir": "/run/spine1", "further": [], "is_further_root": True},
        leaf0 | here | {"further": [{"above": "spine1", "trunk": up}]},
        leaf1 | here | {"further": [{"above": "spine1", "trunk": down}], "aggregates": True},
    ]
    trunk = ROOT["trunks"][0] | {
        "switch": "spine1",
        "way": "up",
        "is_up": True,
        "rings_only": True,
        "error": "",
    }
    text = shown(ROOT | {"fabric": ROOT["fabric"] | {"switches": switches}, "trunks": [trunk]})
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "spine1 - here, for rings alone 5 s /run/spine1" in rows
    assert "leaf0 spine, spine1 here 2 s /run/leaf0" in rows
    assert "leaf1 spine, spine1 here - /run/leaf1" in rows
    assert "leaf1 is in no tree of spine1, its trunk there is down: lost" in rows
    assert not any(row.startswith("leaf0 is in no tree") for row in rows)
    assert any(row.startswith("spine1 up, rings 1 up") for row in rows)


def test_parallel_rings_of_a_job_are_told_together() -> None:
    job = {"phase": "running", "ring_id": 7, "recoveries": 0, "ranks": [], "missing": [], "fallback": ""}
    paths = {"train#1/2": "chain", "train#0/2": "switch", "train#2/3": "switch", "alone": "switch"}
    jobs = [{"name": name, "path": path, "last_recovery": ""} | job for name, path in paths.items()]
    lines = [line.strip() for line in shown(ROOT | {"jobs": jobs}).splitlines()]
    assert "train has 2 parallel rings, summed by: 0 switch, 1 hosts (chain)" in lines
    assert "train has 3 parallel rings, summed by: 0 not there, 1 not there, 2 switch" in lines
    assert not any("alone has" in line for line in lines)


def test_a_leaf_shows_its_session() -> None:
    control = {"path": "/run/control.sock", "since_s": 3.0, "control_boot": "b0", "error": "it is gone"}
    leaf = {key: value for key, value in ROOT.items() if key != "fabric"}
    away = shown(leaf | {"control": control | {"connected": False, "is_admitted": False}})
    assert "no control plane at /run/control.sock for 3 s, its ports are closed: it is gone" in away
    here = shown(leaf | {"control": control | {"connected": True, "is_admitted": True}})
    assert "admitted by control plane b0 at /run/control.sock, 3 s ago" in here


def test_a_daemon_shows_its_controller() -> None:
    told = {
        "paths": ["/c.sock"],
        "at": "/c.sock",
        "since_s": 3.0,
        "term": 2,
        "grants": 1,
        "error": "it is gone",
    }
    daemons: list[dict[str, object]] = [{**HOST}, {**ROOT}]
    for status in daemons:
        away = shown(status | {"controller": told | {"connected": False}})
        assert "no controller for 3 s, jobs go on without: it is gone" in away
        here = shown(status | {"controller": told | {"connected": True, "error": ""}})
        assert "controller at /c.sock for 3 s, term 2; 1 grants" in here
        assert "controller" not in shown(status | {"controller": told | {"paths": [], "error": ""}})


def test_ports_have_names_and_links_that_are_away_say_why() -> None:
    port = {"port": 0, "name": "packet:eth1", "kind": "packet", "frames_in": 3, "frames_out": 4}
    away = {"link": "packet:eth2", "port": 1, "is_attached": False, "since_s": 7.0, "times_up": 1}
    status = ROOT | {
        "ports": [port | {"drops": {"receive ring full": 5}, "way": "packets one by one: why"}],
        "links": [
            away | {"link": "packet:eth1", "port": 0, "is_attached": True, "error": ""},
            away | {"error": "eth2 is down; ip link set eth2 up"},
        ],
    }
    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(Report(switch=status, hosts=[], problems=[])))
    text = capture.get()
    row, way = [line for line in text.splitlines() if "packet:eth1" in line]
    assert "receive ring full 5" in row
    assert way == "  packet:eth1: packets one by one: why"
    assert "packet:eth2, port 1, is away for 7 s: eth2 is down; ip link set eth2 up" in text


def test_a_capture_says_what_is_in_it_and_why_it_ended() -> None:
    full = {"to": "/x.pcapng", "frames": 9, "lost": 2, "bytes": 99, "ended": "the file has 1 MiB"}
    text = shown(ROOT | {"captures": [full, full | {"to": "process 7", "lost": 0, "ended": ""}]})
    assert "captured for /x.pcapng: 9 frames, 2 are not; it ended: the file has 1 MiB\n" in text
    assert "captured for process 7: 9 frames\n" in text


def test_who_was_refused_is_counted_by_reason() -> None:
    listening = {"address": "10.0.0.100:7420", "refused": {"expired": 2}}
    switch = ROOT | {"control_listen": listening, "control_sessions": {"refused": {"not_authorised": 1}}}
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show_report(Report(switch=switch, hosts=[], problems=[])))
    assert "refused at 10.0.0.100:7420: expired 2" in capture.get()
    assert "refused, of those that had a session: not_authorised 1" in capture.get()


def a_shard(model: str, hosts: list[str]) -> dict[str, Any]:
    """Of a server's status."""
    return {
        "model": model,
        "shard": 0,
        "elements": 50_000_000,
        "dtype": "float32",
        "clocks": {"slowest": 150, "fastest": 160, "left": 0, "workers": 12},
        "direct": True,
        "children": [{"host": host, "attached": True} for host in hosts],
        "log_bytes": 400_000_176,
        "snapshots": 1,
        "dead": [],
        "links": [],
        "notes": [],
    }


def test_names_of_a_server_s_shards_and_hosts_are_no_markup_and_fit_a_narrow_terminal() -> None:
    shards = [a_shard("m[/data]", ["h[0]"]), a_shard("digits", [f"worker{n}" for n in range(12)])]
    server = {"name": "ps0", "pid": 1, "uptime_s": 1.0, "refused": {}, "shards": shards}
    console = Console(width=80, force_terminal=False, soft_wrap=True)
    with console.capture() as capture:
        console.print(show_report(Report(switch=None, hosts=[], problems=[], servers=[server])))
    text = capture.get()
    assert "m[/data]/0" in text
    assert "h[0]" in text
    assert "50000000 float32" in text
    assert "torn down" in text
    assert "worker11" in text
    assert "…" not in text


def test_who_has_not_what_its_jobs_need_is_missed() -> None:
    away = {"connected": False, "error": "refused"}
    hosts: list[dict[str, Any]] = [
        {"name": "h0", "switch": {"connected": True}},
        {"name": "h1", "switch": away},
        {"name": "h2", "switch": away, "models": [{}]},
        {"name": "h3", "switch": away, "models": [{}], "rings": [{}]},
        {"name": "h4", "switch": {"connected": False, "error": ""}},
    ]
    leaf = {"name": "leaf0", "control": {"connected": False, "error": "gone"}}
    report = Report(switch={"name": "spine"}, other_switches=[leaf], hosts=hosts)
    assert list(missing(report)) == [
        "host h1 has no switch: refused",
        "host h3 has no switch: refused",
        "host h4 has no switch",
        "switch leaf0 has no control plane: gone",
    ], "push and pull need none, nor does a root"
