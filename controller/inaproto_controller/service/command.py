"""``inaproto controller``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inaproto.cli import DaemonCommand, announce, given, guarded, run_daemon, start_log

if TYPE_CHECKING:
    from inaproto.daemon.settings.config import Settings

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


def _settings_model() -> type[Settings]:
    from inaproto_controller.service.settings import ControllerSettings

    return ControllerSettings


def _controller(config_file: Path | None, show_config: bool, **flags: str | tuple[str, ...] | None) -> None:
    import click

    from inaproto.daemon.net.unix_sockets import require_path_fits
    from inaproto.daemon.settings.config import load_settings
    from inaproto_controller.service.settings import ControllerSettings

    loaded = load_settings(ControllerSettings, given(flags), config_file, os.environ)
    settings = loaded.settings
    for path in (settings.jobs_path, settings.agents_path):
        require_path_fits(path, f"dir ({loaded.sources['dir']})")
    if show_config:
        click.echo(loaded.show(), nl=False)
        return
    start_log(settings.log_level, loaded.warnings, settings.log_format)

    from inaproto_controller.service.daemon import run_controller

    run_daemon(lambda stop: run_controller(settings, stop=stop, announce=announce))


controller = DaemonCommand(
    "controller",
    _settings_model,
    callback=lambda **flags: guarded(lambda: _controller(**flags)),
    short_help="Run a controller.",
    help="Run a controller: it takes jobs in, and gives them hosts and aggregation trees.",
    epilog=_EPILOG,
)
