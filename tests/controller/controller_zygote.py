"""A program that has done all its imports and forks controllers: real processes, started in an instant.

A line of its input is the settings of one, as JSON; the answer is its process id. It ends with its input.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import trio

from inaproto_controller.cluster import graph_file
from inaproto_controller.planning.cluster_planner import ClusterPlanner, TreeWish
from inaproto_controller.service import daemon
from inaproto_controller.service.settings import ControllerSettings
from inaproto_controller.service.store import sqlite as sqlite_store


def serve(settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    loaded = ControllerSettings.model_validate(settings)
    loaded.dir.mkdir(exist_ok=True)
    logging.basicConfig(filename=loaded.dir / "log", level=logging.INFO, format="%(created).3f %(message)s")

    async def main() -> None:
        await daemon.run_controller(loaded, stop=trio.Event(), announce=logging.info)

    try:
        trio.run(main)
    except BaseException:
        logging.exception("it ended")
        os._exit(1)


def warm_up() -> None:
    """What is compiled at the first use is compiled before the first fork."""
    cluster = {
        "hosts": ["a", "b"],
        "switches": [{"name": "s", "jobs": 1}],
        "links": [{"between": ["a", "s"]}, {"between": ["b", "s"]}],
    }
    planner = ClusterPlanner(graph_file.parse_json(json.dumps(cluster).encode()))
    wishes = [TreeWish(1, ("a", "b"), None, None), TreeWish(2, ("a", "b"), None, None)]
    planner.enter(wishes)
    planner.build(wishes, {})
    with tempfile.TemporaryDirectory() as directory:
        store = sqlite_store.SqliteStore(Path(directory) / "store")
        store.lead()
        store.resign()
    psycopg.conninfo.conninfo_to_dict("")


def main() -> None:
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are nobody's to wait for
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            serve(json.loads(line))
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
