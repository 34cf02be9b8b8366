"""The command ``inaproto``: the only place where parts (:mod:`inaproto.parts`) are wired together.

Daemons print one line ``ready ...`` on standard output when they can be used, and log to standard
error. Exit status: 0 for an orderly end (SIGTERM and Ctrl-C included), 1 when something outside
failed, 2 when the command or its configuration is wrong; none of these with a traceback. Commands that have
others say so in their help.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
)

import click

from inaproto.errors import ConfigError, InaprotoError, InvariantBroken, LocalMisuse, Unsupported
from inaproto.option_types import WholeGroup
from inaproto.reader_gone import why_not_written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trio

    from inaproto.daemon.models.channels.queue_pairs import QueuePairs
    from inaproto.daemon.settings.config import (
        HostSettings,
        Loaded,
        OverlayNic,
        ServerSettings,
        Settings,
        SwitchSettings,
    )
    from inaproto.ports import FramePort

COMMAND_GROUP: Final = "inaproto.commands"
KERNELS_VARIABLE: Final = "INAPROTO_KERNELS"
"""Which kernels handle packets: ``compiled`` or ``numpy`` (docs/concepts.md)."""
Flag = str | tuple[str, ...] | None
Flags = Mapping[str, Flag]
S = TypeVar("S", bound="Settings")
EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_MISSING: Final = 3
_EXTRAS: Final = {"matplotlib": "pictures"}
"""Which extra has a module that commands need for all that they do, and daemons for nothing."""

_EPILOG: Final = """
Example: one switch and two hosts on this machine, in any order of starting.

\b
  inaproto switch --dir /tmp/ina &
  inaproto host --dir /tmp/ina --name h0 --ip 10.0.0.1 &
  inaproto host --dir /tmp/ina --name h1 --ip 10.0.0.2 &
  inaproto status --dir /tmp/ina

\b
Then, in two training processes (rank 0 at h0, rank 1 at h1):
  comm = inaproto.connect_blocking("job", rank=0, size=2, key="secret", socket="/tmp/ina/h0.sock")
  total = comm.all_reduce(gradient).wait()

\b
Or all of it by one command, which starts daemons where none run, and the processes of a script:
  inaproto run -n 2 -- python train.py

\b
Several switches, from one file that names them all (deploy/fabric.toml):
  inaproto switch --fabric fabric.toml --name spine &
  inaproto switch --fabric fabric.toml --name leaf0 &
  inaproto host --dir DIRECTORY-OF-SPINE --switch leaf0 --name h0 --ip 10.0.0.1 &

\b
Workers that push and pull, with parameter servers; all daemons read one file (docs/push-pull.md):
  inaproto server --dir /tmp/ina --models models.toml --name ps0 &
  inaproto host --dir /tmp/ina --models models.toml --name h0 --ip 10.0.0.1 &

Every option of a daemon can also be a field of its table in a TOML file (--config) or an environment
variable (INAPROTO_ and its name in capitals); flags win over the environment, the environment over the file.
INAPROTO_KERNELS=numpy runs without the compiled kernels, INAPROTO_KERNELS=compiled not without them.
"""


_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Run a job": ("run", "job", "status", "top"),
    "Daemons": ("switch", "host", "server", "controller"),
    "Operate": ("doctor", "report", "ca", "nics", "capture", "inspect", "weights", "sharp", "version"),
    "Plan and measure": ("plan", "simulate", "model", "bench", "reproduce"),
    "Show and prove": ("demo", "soak", "explore", "replay", "crashes", "hil", "rtl"),
}
"""Commands by what they are for; one that is in none stands in the last section, of its own."""


class _Commands(WholeGroup):
    """The commands of this module, and those that other packages announce as entry points."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {name for names in _SECTIONS.values() for name in names}
        further = tuple(name for name in self.list_commands(ctx) if name not in known)
        for title, names in {**_SECTIONS, "Further": further}.items():
            if rows := self.rows(ctx, names):
                with formatter.section(title):
                    formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(_announced())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        entry = _announced().get(cmd_name)
        if own is not None or entry is None:
            return own
        command = entry.load()
        if not isinstance(command, click.Command):
            raise click.ClickException(f"{entry.value} (entry point {cmd_name}) is not a click command")
        return command


def _announced() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}


@click.group(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, asked: _end_with_version(ctx) if asked else None,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """In-network aggregation: all-reduces that are summed in the switch, over RoCEv2.

    A switch daemon sums the gradients of training processes while their packets pass through; a host
    daemon on every machine sends them for the processes that run there. Where workers do not go in step,
    or no switch can help, parameter servers hold the weights, and trees of hosts add up what is pushed.
    """
    name = os.environ.get(KERNELS_VARIABLE, "")
    if name:  # else the compiled ones, if there are any
        from inaproto.core import kernels

        try:
            kernels.choose(name)
        except ValueError as error:
            raise click.UsageError(f"{KERNELS_VARIABLE}: {error}") from None
    if not isinstance(cli.get_command(ctx, ctx.invoked_subcommand or ""), DaemonCommand):
        _say_slips()  # daemons have them in their log


def _say_slips() -> None:
    """Variables of the environment that look like ours and are none."""
    if any(name.startswith("INAPROTO_") for name in os.environ):
        from inaproto.client.variables import slips

        for slip in slips(os.environ):
            click.echo(f"inaproto: {slip}", err=True)


class Daemon(NamedTuple, Generic[S]):
    """What a daemon's command needs of it."""

    model: type[S]
    load: Callable[[Mapping[str, object], Path | None, Mapping[str, str]], Loaded[S]]
    """Merges the flags that are given, the file and the environment."""
    serve: Callable[[S, trio.Event], Awaitable[None]]
    """Runs until the event."""


class DaemonCommand(click.Command):
    """A daemon, with one option per field of its settings."""

    def __init__(self, name: str, daemon: Callable[[], Daemon[Any]], **rest: Any) -> None:
        super().__init__(name, callback=lambda **flags: guarded(lambda: self._run(**flags)), **rest)
        self._daemon = daemon
        self._made = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._made:  # pydantic is imported when a daemon's options are asked for, not before
            self._made = True
            self.params += _options(self._daemon().model)
        return super().get_params(ctx)

    def _run(self, config_file: Path | None, show_config: bool, **flags: Flag) -> None:
        daemon = self._daemon()
        loaded = daemon.load(given(flags), config_file, os.environ)
        if show_config:
            for warning in loaded.warnings:
                click.echo(f"inaproto: {warning}", err=True)
            click.echo(loaded.show(), nl=False)
            return
        settings = loaded.settings
        start_log(settings.log_level, loaded.warnings, settings.log_format)
        run_daemon(lambda stop: daemon.serve(settings, stop))


def _options(model: type[Settings]) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(
            ["--config", "config_file"],
            type=click.Path(path_type=Path),
            help=f"TOML file; its table [{model.table}] holds these options with underscores.",
        ),
        click.Option(["--show-config"], is_flag=True, help="Print the configuration in force and exit."),
    ]
    for name, field in model.model_fields.items():
        text = field.description or ""
        if field.is_required():
            text += "  [required]"
        elif field.default not in (None, (), "") and name != "dir":
            text += f"  [default: {field.default}]"
        # Texts, so that a bad value is refused in the same words wherever it comes from.
        options.append(
            click.Option(
                [f"--{name.replace('_', '-')}", name],
                metavar=_metavar(name, field.annotation),
                multiple=field.default == (),
                help=text.strip(),
            )
        )
    return options


_ADDRESSES: Final = ("tcp", "metrics", "control_listen", "agents_listen")
_UNITS: Final = ("ms", "kib", "mib", "mb", "days")


def _metavar(name: str, annotation: object) -> str:
    """What a value of the field is, in a word."""
    kinds = get_args(annotation) or (annotation,)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, kinds))
    if Path in kinds:
        return "PATH"
    if name == "ip":
        return "IP"
    if name in _ADDRESSES:
        return "ADDRESS:PORT"
    unit = name.rpartition("_")[2]
    if unit in _UNITS:
        return unit.upper()
    return "N" if int in kinds else "NUMBER" if float in kinds else "VALUE"


async def _serve_switch(settings: SwitchSettings, stop: trio.Event) -> None:
    from inaproto.daemon.settings.fabric_file import place_in
    from inaproto.daemon.switch.daemon import run_switch
    from inaproto.parts import accelerator_of, frame_ports_of, links_of

    place = None if settings.fabric is None else place_in(settings.fabric, settings.name)
    ports = frame_ports_of(settings.adapter)

    async def connect_port(path: Path) -> FramePort:
        return await ports.connect(path, wait_ns=0)  # who dials again does so itself

    await run_switch(
        settings,
        open_port_listener=ports.listen,
        place=place,
        connect_port=connect_port,
        wrap_port=_weather_of(settings),
        links=links_of(settings),
        shard_command=lambda number, fd: _command_of_shard(settings, number, fd),
        stop=stop,
        announce=announce,
        make_accelerator=accelerator_of(settings),
    )


def _weather_of(settings: SwitchSettings) -> Callable[[FramePort, str], FramePort] | None:
    """What puts the weather around a port; None: it is clear."""
    from inaproto.ports import load_adapter

    if settings.weather.clear:
        return None
    weather = load_adapter("weather")

    def wrap_port(port: FramePort, name: str) -> FramePort:
        wrapped: FramePort = weather.open(port, settings.weather, seed=settings.seed, name=name)
        return wrapped

    return wrap_port


_OF_SHARDS: Final = ("shards", "rings_max", "memory_kib", "weather", "seed", "log_level", "log_format")
"""Options of a switch that its shards go by, beside its ports."""


def _command_of_shard(settings: SwitchSettings, number: int, fd: int) -> list[str]:
    told = {name: str(getattr(settings, name)) for name in _OF_SHARDS}
    options = json.dumps(told | {"port": list(settings.port)})
    return [sys.executable, "-m", "inaproto", "switch-shard", str(number), str(fd), options]


@cli.command("switch-shard", hidden=True)
@click.argument("number", type=int)
@click.argument("descriptor", type=int)
@click.argument("options")
def switch_shard(number: int, descriptor: int, options: str) -> None:
    """Be a shard of the switch that starts this, and speaks on that descriptor."""
    guarded(lambda: _switch_shard(number, descriptor, json.loads(options)))


def _switch_shard(number: int, descriptor: int, options: Mapping[str, object]) -> None:
    import socket

    import trio

    from inaproto.core.rendezvous.fabric.shards import shard_name
    from inaproto.daemon.net.control_stream import ControlStream
    from inaproto.daemon.settings.config import SwitchSettings
    from inaproto.daemon.switch.shard import Shard
    from inaproto.parts import links_of

    settings, name = SwitchSettings.model_validate(options), shard_name(number)
    start_log(settings.log_level, (), settings.log_format)

    def named(record: logging.LogRecord) -> bool:
        record.msg = f"{name}: {record.msg}"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(named)

    async def serve() -> None:
        stream = ControlStream(socket.socket(fileno=descriptor))
        await Shard(name, settings, stream, links_of(settings, number), wrap_port=_weather_of(settings)).run()

    trio.run(serve)


async def _serve_shards(settings: ServerSettings, stop: trio.Event) -> None:
    import trio

    from inaproto.daemon.models.parameter_server import run_server
    from inaproto.daemon.settings.models_file import load_models

    models = load_models(settings.models)
    queue_pairs = _queue_pairs(settings.overlay_nic)
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[object]) -> None:
            await run_server(
                models,
                settings.name,
                settings.store_path,
                settings.listen_path,
                tls=settings.tls,
                metrics=settings.metrics,
                queue_pairs=queue_pairs,
                task_status=task_status,
            )

        await nursery.start(serve)
        announce(f"ready server name={settings.name} listen={models.processes[settings.name]}")
        await stop.wait()
        nursery.cancel_scope.cancel()


def _queue_pairs(wish: OverlayNic | None) -> QueuePairs | None:
    """Queue pairs of the NIC for words and arrays of models, where one is named."""
    if wish is None:
        return None
    from inaproto.daemon.models.channels.queue_pairs import QueuePairs
    from inaproto.parts import overlay_nic_of

    return QueuePairs(overlay_nic_of(wish), traffic_class=wish.traffic_class)


async def _serve_host(settings: HostSettings, stop: trio.Event) -> None:
    import trio

    from inaproto.daemon.host.daemon import HostDaemon, run_host
    from inaproto.daemon.host.placement import place
    from inaproto.daemon.net.unix_sockets import make_run_directory
    from inaproto.parts import collective_of, nic_of

    settings, open_nic = await nic_of(settings)
    placement = place(settings.cpus)
    queue_pairs = _queue_pairs(settings.overlay_nic)
    collective = collective_of(settings)
    make_run_directory(settings.listen_path.parent, "host")
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[HostDaemon]) -> None:
            await run_host(
                settings,
                open_nic=open_nic,
                queue_pairs=queue_pairs,
                collective=collective,
                placement=placement,
                task_status=task_status,
            )

        daemon: HostDaemon = await nursery.start(serve)
        announce(f"ready host name={settings.name} listen={settings.listen_path}")
        await stop.wait()
        await daemon.end()
        nursery.cancel_scope.cancel()


def _switch() -> Daemon[SwitchSettings]:
    from inaproto.daemon.settings.config import SwitchSettings, load_switch_settings

    return Daemon(SwitchSettings, load_switch_settings, _serve_switch)


def _host() -> Daemon[HostSettings]:
    from inaproto.daemon.settings.config import HostSettings, load_host_settings

    return Daemon(HostSettings, load_host_settings, _serve_host)


def _server() -> Daemon[ServerSettings]:
    from inaproto.daemon.settings.config import ServerSettings, load_server_settings

    return Daemon(ServerSettings, load_server_settings, _serve_shards)


cli.add_command(
    DaemonCommand(
        "switch",
        _switch,
        short_help="Run a switch.",
        help="Run a switch: hosts plug into its ports, and it sums what their rings send.",
        epilog="Example: inaproto switch --dir /tmp/ina --weather drop=0.01,reorder=0.01 --seed 7",
    )
)
cli.add_command(
    DaemonCommand(
        "host",
        _host,
        short_help="Run a host daemon.",
        help="Run a host daemon: it carries the all-reduces of the training processes on this machine.",
        epilog="Example: inaproto host --dir /tmp/ina --name h0 --ip 10.0.0.1",
    )
)


cli.add_command(
    DaemonCommand(
        "server",
        _server,
        short_help="Run a parameter server.",
        help="Run a parameter server: it holds its part of models trained by push and pull, on disk.",
        epilog="Example: inaproto server --dir /tmp/ina --models models.toml --name ps0",
    )
)


_STATUS_EPILOG: Final = """
Exit status, for health checks: 0 if all that were asked answer and have what their jobs need; 3 if all
answer, and a host has no switch (those that only push and pull need none) or a switch no control plane; 1 if
one gives no answer, none is there, or a parameter server cannot write; 2 if the command is wrong. The reasons
are on standard error, a line each.
"""


@cli.command(short_help="Show what running daemons are doing.", epilog=_STATUS_EPILOG)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Ask all daemons whose sockets are here, and switches that they name.",
)
@click.option(
    "--socket", "sockets", type=click.Path(path_type=Path), multiple=True, help="Ask this daemon; repeatable."
)
@click.option(
    "--control",
    "controls",
    multiple=True,
    metavar="tls://NAME@ADDRESS:PORT",
    help="Ask this switch of another machine, with --tls; repeatable.",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path),
    help="Directory of an operator's certificate (inaproto ca issue).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object: switch, other_switches, hosts, servers, problems (exit status 1), missing (3).",
)
def status(
    directory: Path | None,
    sockets: tuple[Path, ...],
    controls: tuple[str, ...],
    tls: Path | None,
    as_json: bool,
) -> None:
    """Show what running daemons are doing: ports, jobs, ranks that are missing, losses."""
    guarded(lambda: _status(directory, sockets, controls, tls, as_json=as_json))


def _status(
    directory: Path | None,
    sockets: tuple[Path, ...],
    controls: tuple[str, ...],
    tls: Path | None,
    *,
    as_json: bool,
) -> None:
    import trio

    from inaproto.client.run_directory import run_directory
    from inaproto.daemon.net.control_address import door_for_operator
    from inaproto.daemon.observe.status import ask_daemons, missing

    if directory is None and not sockets and not controls:
        directory = run_directory(os.environ)
    doors = [door_for_operator(control, tls) for control in controls]
    report = trio.run(ask_daemons, directory, sockets, doors)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, default=repr))
    else:
        from rich.console import Console

        from inaproto.daemon.observe.status_tables import show_report

        Console(highlight=False, soft_wrap=True).print(show_report(report))
    lacks = list(missing(report))
    for problem in (*report.problems, *lacks):
        click.echo(f"inaproto status: {problem}", err=True)
    if report.problems or lacks:
        sys.exit(EXIT_FAILED if report.problems else EXIT_MISSING)


@cli.command(name="version", short_help="Print the version.")
def show_version() -> None:
    """Print the version of inaproto and of what it runs on."""
    _print_version()


def _end_with_version(ctx: click.Context) -> NoReturn:
    _print_version()
    ctx.exit()


def _print_version() -> None:
    import platform

    parts = [f"inaproto {version('inaproto')}", f"python {platform.python_version()}"]
    parts += [f"{name} {version(name)}" for name in ("trio", "numpy")]
    click.echo(", ".join(parts))


# --- what all commands share


def given(flags: Flags) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None and value != ()}


def announce(line: str) -> None:
    """Say that a daemon can be used: on standard output, and to the service manager."""
    from inaproto.daemon.observe.service_manager import READY, tell

    click.echo(line)  # flushes
    tell(READY, f"STATUS={line}")


def start_log(level: str, warnings: tuple[str, ...], log_format: str = "text") -> None:
    """``log_format``: text, or json."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    if log_format == "json":
        from inaproto.daemon.observe.json_log import JsonFormatter

        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    for warning in warnings:
        logging.getLogger("inaproto").warning("%s", warning)


_YOUNG_OBJECTS_MAX: Final = 10_000
"""More than the messages of all windows have; Python's own bound, 700, is passed by those of one."""


def collect_seldom() -> None:
    """Have the garbage collector look seldom: what the data path makes has no cycles, and goes by itself.

    What lives from one step to the next, such as messages on the way, counts for the collector all the same.
    Modules and settings stay for ever, and are not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX)


def run_daemon(serve: Callable[[trio.Event], Awaitable[None]]) -> None:
    """Run a daemon until it ends or SIGTERM or SIGINT comes; the second signal does not wait."""
    import trio

    from inaproto.daemon.observe.service_manager import STOPPING, give_signs_of_life, tell

    async def watch(signals: AsyncIterator[int], stop: trio.Event, scope: trio.CancelScope) -> None:
        async for number in signals:
            if stop.is_set():
                scope.cancel()
            logging.getLogger("inaproto").info("stopping (%s)", signal.Signals(number).name)
            tell(STOPPING)
            stop.set()

    async def main() -> None:
        stop = trio.Event()
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, signals, stop, nursery.cancel_scope)
                nursery.start_soon(give_signs_of_life)
                await serve(stop)
                nursery.cancel_scope.cancel()

    collect_seldom()
    trio.run(main)


def guarded(command: Callable[[], None]) -> None:
    """Errors that a person can act on become messages; faults of ours keep their traceback."""
    try:
        command()
    except InaprotoError as error:
        if isinstance(error, InvariantBroken | LocalMisuse):
            raise
        _fail([error])
    except BaseExceptionGroup as group:
        found = leaves(group)
        if any(
            not isinstance(leaf, InaprotoError) or isinstance(leaf, InvariantBroken | LocalMisuse)
            for leaf in found
        ):
            raise
        _fail(found)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions in it that are no groups."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _fail(errors: list[BaseException] | list[InaprotoError]) -> NoReturn:
    for error in errors:
        for line in str(error).splitlines():
            click.echo(f"inaproto: {line}", err=True)
    wrong = any(isinstance(error, ConfigError | Unsupported) for error in errors)
    sys.exit(EXIT_WRONG if wrong else EXIT_FAILED)


def main() -> None:
    """Entry point of the command."""
    try:
        cli(prog_name="inaproto")
    except (OSError, SystemExit) as error:
        why = why_not_written(error)
        if why is None:
            raise
        code = error.code if isinstance(error, SystemExit) else 0
        click.echo(f"inaproto: standard output: {why.strerror}", err=True)
        sys.exit(code or EXIT_FAILED)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        click.echo(f"inaproto: {error.name} is not installed: pip install 'inaproto[{extra}]'", err=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
