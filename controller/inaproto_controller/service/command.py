"""``inaproto controller``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from inaproto.cli import Daemon, DaemonCommand, Flag, announce, given

if TYPE_CHECKING:
    from collections.abc import Mapping

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
A backup of its store, also while it runs, and back into an empty store, of either kind:
  inaproto controller --config controller.toml --export backup.jsonl
  inaproto controller --store postgresql://ina@db/ina --import backup.jsonl

\b
It may be killed at any time: what it has promised is in its store, jobs that run go on without it.
The cluster file: docs/cluster-files.md. Operating it: docs/operating.md. Disasters: docs/runbook.md.
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


class _Controller(DaemonCommand):
    """The daemon, or, with ``--export`` or ``--import``, what is done with its store alone."""

    def __init__(self, **rest: Any) -> None:
        super().__init__("controller", _daemon, params=_transfer_options(), **rest)

    def _run(self, config_file: Path | None, show_config: bool, **flags: Flag) -> None:
        from inaproto_controller.service.store import transfer

        export_to, import_from = flags.pop("export_to"), flags.pop("import_from")
        replace = bool(flags.pop("replace"))
        transfer.require_possible(export_to, import_from, replace=replace)
        if export_to is None and import_from is None:
            super()._run(config_file, show_config, **flags)
            return
        # A daemon must have a cluster file; whoever saves its store need not name one.
        known = {"cluster": os.devnull} | given(flags)
        store = _load(known, config_file, os.environ).settings.store_or_default
        if export_to is not None:
            said = transfer.export(store, str(export_to))
        else:
            said = transfer.import_(store, str(import_from), replace=replace)
        click.echo(said, err=True)


def _transfer_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--export", "export_to"],
            metavar="FILE",
            help="Write the store to this file, - is the standard output, and exit; a controller that runs "
            "goes on.",
        ),
        click.Option(
            ["--import", "import_from"],
            metavar="FILE",
            help="Make the store of what was exported, and exit; no controller may run with it, and it must "
            "be empty.",
        ),
        click.Option(["--replace"], is_flag=True, help="With --import: forget what the store has."),
    ]


controller = _Controller(
    short_help="Run a controller.",
    help="Run a controller: it takes jobs in, and gives them hosts and aggregation trees.",
    epilog=_EPILOG,
)
