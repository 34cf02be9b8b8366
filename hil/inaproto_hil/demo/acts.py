"""``inaproto demo``: the acts of the demo, whose training is in ``examples/digits`` of the source tree."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from inaproto.errors import JobError, Unsupported
from inaproto.option_types import FiniteRange, FolderToMake, WholeGroup

F = TypeVar("F", bound=Callable[..., Any])
SEED_MAX = (1 << 63) - 1
_SEED = click.option(
    "--seed",
    type=click.IntRange(0, SEED_MAX),
    default=1,
    envvar="INAPROTO_SEED",
    show_envvar=True,
    help="Of the weather, the split, the order and the first weights.",
)
_BATCH = click.option(
    "--batch", type=click.IntRange(min=2), default=64, help="Samples per step, all workers together."
)


def _timeout(default: float) -> Callable[[F], F]:
    seconds = FiniteRange(0.1, 3600)
    return click.option("--timeout", type=seconds, default=default, help="Seconds one all-reduce may take.")


def _out(default: str) -> Callable[[F], F]:
    return click.option(
        "--out", type=FolderToMake(), default=Path(default), help="Directory of what it leaves."
    )


@contextmanager
def _source_tree() -> Iterator[None]:
    """For the import of an act."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("examples", "examples.digits"):
            raise
        raise click.ClickException(
            "what the demo trains is in examples/digits of the source tree, which is not here: "
            "run it from a checkout, by `make demo`"
        ) from None


def _require_shards(batch: int, ranks: int) -> None:
    if batch % ranks:
        raise click.UsageError(f"--batch {batch} must be a multiple of the {ranks} ranks")


@click.group(cls=WholeGroup, invoke_without_command=True, context_settings={"show_default": True})
@_SEED
@click.option("--ranks", type=click.IntRange(2, 64), default=4, help="Workers, each with a host daemon.")
@click.option("--epochs", type=click.IntRange(min=1), default=30)
@_BATCH
@click.option(
    "--weather",
    default="drop=0.01,duplicate=0.001,reorder=0.01",
    help="What the switch's ports do to frames; empty for a clean wire.",
)
@click.option(
    "--accelerator",
    default="software",
    help="What sums in the switch; rtl: the hardware design in simulation, by default for one epoch.",
)
@_timeout(120.0)
@click.option(
    "--kill-switch-at",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Kill the switch (SIGKILL) at this step and start another.",
)
@_out("demo-out")
@click.pass_context
def demo(
    context: click.Context,
    *,
    seed: int,
    ranks: int,
    epochs: int,
    batch: int,
    weather: str,
    accelerator: str,
    timeout: float,
    kill_switch_at: int | None,
    out: Path,
) -> None:
    """Train on handwritten digits through an aggregating switch, and compare with one process.

    With the name of another act behind it, that act is played instead; its options follow its name.
    """
    if context.invoked_subcommand is not None:
        given = [
            name
            for name in context.params
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise click.UsageError(f"{flags}: the options of an act follow its name")
        return
    _require_shards(batch, ranks)
    with _source_tree():
        from examples.digits import demo as act
    if accelerator != "software" and context.get_parameter_source("epochs") is ParameterSource.DEFAULT:
        epochs = 1
    config = act.Config(
        seed=seed,
        ranks=ranks,
        epochs=epochs,
        batch=batch,
        weather=weather,
        accelerator=accelerator,
        timeout_s=timeout,
        kill_switch_at=kill_switch_at,
    )
    sys.exit(act.main(config, out))


@demo.command()
@_SEED
@click.option("--epochs", type=click.IntRange(min=1), default=8, help="At least; until all has happened.")
@_BATCH
@click.option(
    "--weather",
    default="drop=0.002,duplicate=0.0005,reorder=0.002",
    help="What the ports of all switches do to frames; empty for a clean wire.",
)
@click.option("--flaps", type=click.IntRange(min=1), default=3, help="Of the link between leaf1 and spine.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=20, help="Of training between one event and the next."
)
@_timeout(120.0)
@_out("demo-out/racks")
def racks(
    *, seed: int, epochs: int, batch: int, weather: str, flaps: int, steps: int, timeout: float, out: Path
) -> None:
    """Two racks, four hosts, eight ranks: a link flaps and a leaf reboots while they train."""
    with _source_tree():
        from examples.digits import racks as act
    config = act.Config(
        seed=seed,
        weather=weather,
        epochs=epochs,
        batch=batch,
        flaps=flaps,
        steps=steps,
        timeout_s=timeout,
    )
    _require_shards(batch, config.ranks)
    sys.exit(act.main(config, out))


@demo.command()
@_SEED
@_BATCH
@click.option(
    "--steps", type=click.IntRange(min=1), default=10, help="Of training between one event and the next."
)
@click.option("--kills", type=click.IntRange(min=0), default=10, help="Of host daemons, by SIGKILL.")
@click.option("--back", is_flag=True, help="From this release to the one before.")
@_timeout(60.0)
@_out("demo-out/upgrade")
def upgrade(*, seed: int, batch: int, steps: int, kills: int, back: bool, timeout: float, out: Path) -> None:
    """Every daemon is replaced by the release before, or from it, while four hosts train; some are killed.

    The release before is built from its commit, which CHANGELOG.md names; that needs git and a checkout.
    """
    with _source_tree():
        from examples.digits import upgrade as act
    config = act.Config(seed=seed, batch=batch, steps=steps, kills=kills, back=back, timeout_s=timeout)
    _require_shards(batch, config.ranks)
    try:
        sys.exit(act.main(config, out))
    except Unsupported as why:
        raise click.ClickException(str(why)) from None


@demo.command()
@_SEED
@click.option("--steps", type=click.IntRange(min=8), default=20, help="Training steps of each job.")
@click.option("--slower", type=FiniteRange(0.1, 1000), default=4.0, help="Than the models were measured.")
@_timeout(120.0)
@_out("demo-out/sharing")
def sharing(*, seed: int, steps: int, slower: float, timeout: float, out: Path) -> None:
    """Jobs share the switches of two racks by turns, and move; their controller is killed in the middle."""
    from inaproto_hil.demo import sharing as act

    config = act.Config(seed=seed, steps=steps, slower=slower, timeout_s=timeout)
    sys.exit(act.main(config, out, click.echo))


@demo.command()
@click.option(
    "--steps", type=click.IntRange(min=5), default=40, help="All-reduces by SHARP between two events."
)
@click.option(
    "--scale",
    type=FiniteRange(0.0, 10.0),
    default=0.0,
    help="Of the times that giving a tree back and getting one took in the MINA paper (125 and 294 ms).",
)
@_out("demo-out/sharp")
def sharp(*, steps: int, scale: float, out: Path) -> None:
    """Jobs of a double of SHARP lose a tree, are denied a lock, swap their trees, and one crashes.

    Needs a C compiler and a checkout; no SHARP is met.
    """
    from inaproto_hil.demo import sharp as act
    from inaproto_hil.rigs.cluster import ClusterError

    logging.getLogger("inaproto.client").setLevel(logging.ERROR)  # that a daemon is gone is in the play
    try:
        sys.exit(act.main(act.Config(steps=steps, scale=scale), out, click.echo))
    except (Unsupported, ClusterError) as why:
        raise click.ClickException(str(why)) from None


@demo.command()
@_SEED
@click.option("--workers", type=click.IntRange(3, 64), default=8, help="Each with a host daemon.")
@click.option("--servers", type=click.IntRange(1, 16), default=2, help="Parameter servers.")
@click.option("--steps", type=click.IntRange(min=6), default=60, help="Updates of each worker.")
@click.option("--staleness", type=click.IntRange(0, 64), default=2, help="Clocks that a pull may be behind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the story.")
@_out("demo-out/pushpull")
def pushpull(
    *, seed: int, workers: int, servers: int, steps: int, staleness: int, as_json: bool, out: Path
) -> None:
    """Workers push and pull through trees of hosts; an interior host and a server are killed in between."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from inaproto.cli import leaves
    from inaproto_hil.demo import push_pull as act
    from inaproto_hil.rigs.cluster import ClusterError

    logging.getLogger("inaproto.client").setLevel(logging.ERROR)  # that its daemon is gone is in the play
    steps -= steps % (staleness + 1)  # so that the last updates are at the end of a window
    config = act.Config(seed=seed, workers=workers, servers=servers, steps=steps, staleness=staleness)
    console = Console(stderr=True, highlight=False, quiet=as_json)
    columns = TextColumn("updates"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("updates", total=workers * steps)

        def say(line: str) -> None:
            if not as_json:
                bar.console.print(line, soft_wrap=True, markup=False)

        try:
            told = act.run(config, out, say, lambda done: bar.update(task, completed=done))
        except* (ClusterError, JobError) as failed:
            raise click.ClickException("\n".join(str(error) for error in leaves(failed))) from None
    if as_json:
        click.echo(json.dumps(told, indent=1))
    else:
        click.echo(
            f"{told['pulls']} pulls, {told['updates_redone']} updates made again, events: {told['events']}"
        )
        click.echo(act.last_line(told))
    good = told["exact"] and not told["staleness_violations"] and not told["lost_updates"]
    sys.exit(0 if good else 1)


@demo.command()
@_SEED
@click.option("--ranks", type=click.IntRange(2, 8), default=4, help="Workers, each at a RoCE device.")
@click.option("--epochs", type=click.IntRange(min=1), default=30)
@_BATCH
@click.option("--weather", default="", help="What the switch's ports do to frames, e.g. drop=0.001.")
@_timeout(120.0)
@_out("demo-out/softroce")
def softroce(
    *, seed: int, ranks: int, epochs: int, batch: int, weather: str, timeout: float, out: Path
) -> None:
    """Workers at kernel RoCE devices (Soft-RoCE) in a virtual machine; see `inaproto hil softroce`.

    Takes some minutes: daemons and workers are nine processes on one emulated core.
    """
    with _source_tree():
        from examples.digits import demo as act
        from examples.digits import softroce as guest_act
    _require_shards(batch, ranks)
    config = act.Config(
        seed=seed, ranks=ranks, epochs=epochs, batch=batch, weather=weather, timeout_s=timeout
    )
    try:
        sys.exit(guest_act.main(config, out))
    except Unsupported as why:
        raise click.ClickException(str(why)) from None
