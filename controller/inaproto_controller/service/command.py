"""``inaproto controller``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.cli import Daemon, DaemonCommand, announce

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import trio

    from inaproto.daemon.settings.config import Loaded
    from inaproto_controller.service.settings import ControllerSettings

_EPILOG: Final = """
\b
Example: a controller for the machines of cluster.json, and a job:
  inaproto controller --dir /tmp/ina --cluster cluster.json &
  inaproto job submit --dir /tmp/ina train1 --hosts 4
  inaproto job watch --dir /tmp/ina train1

\b
Two controllers, of which one leads, and the other takes over when it is gone:
  inaproto controller --dir /run/ina-a --cluster cluster.json --store postgresql://ina@db/ina
  inaproto controller --dir /run/ina-b --cluster cluster.json --store postgresql://ina@db/ina

\b
It may be killed at any time: what it has promised is in its store, jobs that run go on without it.
The cluster file: docs/cluster-files.md. Operating it: docs/operating.md.
"""


def _daemon() -> Daemon[ControllerSettings]:
    from inaproto_controller.service.settings import ControllerSettings

    return Daemon(ControllerSettings, _load, _serve)


def _load(
    flags: Mapping[str, object], file: Path | None, environment: Mapping[str, str]
) -> Loaded[ControllerSettings]:
    from inaproto.daemon.net.unix_sockets import require_path_fits
    from inaproto.daemon.settings.config import load_settings
    from inaproto_controller.service.settings import ControllerSettings

    loaded = load_settings(ControllerSettings, flags, file, environment)
    for path in (loaded.settings.jobs_path, loaded.settings.agents_path):
        require_path_fits(path, f"dir ({loaded.sources['dir']})")
    return loaded


async def _serve(settings: ControllerSettings, stop: trio.Event) -> None:
    from inaproto_controller.service.daemon import run_controller

    await run_controller(settings, stop=stop, announce=announce)


controller = DaemonCommand(
    "controller",
    _daemon,
    short_help="Run a controller.",
    help="Run a controller: it takes jobs in, and gives them hosts and aggregation trees.",
    epilog=_EPILOG,
)
