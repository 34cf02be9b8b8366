"""``inaproto weights``: the weights of a model from its servers' stores, as .npy."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from inaproto.errors import ConfigError

_EPILOG = """
Examples.

\b
  inaproto weights digits --dir /tmp/ina -o digits.npy
  inaproto weights digits --store /srv/ps0/digits-0 --store /srv/ps1/digits-1 -o digits.npy --json

It reads alone, of servers that run, too: what is on disk at this moment. Servers go on by themselves, so
parts may have updates that others have not: their clocks are printed.
"""


@click.command(epilog=_EPILOG, short_help="Save the weights of a model that servers have on disk.")
@click.argument("model")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Run directory of the servers.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Directory of one part, STORE/MODEL-NUMBER; repeatable. By default all of the model in --dir.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File, .npy; none: only tell.")
@click.option(
    "--parts", is_flag=True, help="The parts that are here, each to its own file OUTPUT-NUMBER.npy."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: what was found, by whose clocks.")
def weights(
    model: str,
    directory: Path | None,
    stores: tuple[Path, ...],
    output: Path | None,
    parts: bool,
    as_json: bool,
) -> None:
    """Save the weights of MODEL, trained by push and pull, from its servers' stores as .npy.

    With fixed point they are float64, as workers pull them. What it finds is printed: which updates of each
    worker are in them.
    """
    try:
        told = _save(model, directory, stores, output, by_parts=parts)
    except ConfigError as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"inaproto: {output}: {error.strerror}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(f"{told['model']}: {told['elements']} elements of {told['dtype']}, {told['of']} parts")
    for part in told["parts"]:
        clocks = ", ".join(f"{name} {clock}" for name, clock in part["clocks"].items())
        click.echo(f"  part {part['part']}, {part['store']}: updates of {clocks}")
    if not told["same_clocks"]:
        click.echo("  parts differ in their updates: servers go on by themselves")
    for file in told["files"]:
        click.echo(f"  written: {file}")


def _save(
    model: str, directory: Path | None, stores: tuple[Path, ...], output: Path | None, *, by_parts: bool
) -> dict[str, Any]:
    import numpy as np

    from inaproto.client.run_directory import run_directory
    from inaproto.core.models.fixed_point import dequantised
    from inaproto.daemon.models.store.stored_weights import find_stores, read_part, same_clocks, whole

    if not stores:
        directory = run_directory(os.environ) if directory is None else directory
        stores = tuple(find_stores(directory, model))
        if not stores:
            raise ConfigError(
                f"weights: {directory} has no store of a model {model!r}; name them with --store"
            )
    found = sorted((read_part(store) for store in stores), key=lambda part: part.state.shard)
    for part in found:
        if part.state.model != model:
            raise ConfigError(f"weights: {part.directory} is of model {part.state.model!r}, not {model!r}")
    files: dict[Path, Any] = {}
    bits = found[0].state.fraction_bits
    if by_parts:
        for part in found:
            path = Path() if output is None else output.with_name(f"{output.stem}-{part.state.shard}.npy")
            files[path] = part.weights if bits is None else dequantised(part.weights, bits)
    else:
        files[output or Path()] = whole(found)
    dtype = next(iter(files.values())).dtype
    if output is not None:
        for path, array in files.items():
            with path.open("wb") as file:
                np.save(file, array)
    return {
        "model": model,
        "dtype": str(dtype),
        "elements": found[0].state.model_elements,
        "of": found[0].state.shards,
        "same_clocks": same_clocks(found),
        "parts": [part.told() for part in found],
        "files": [str(path) for path in files] if output is not None else [],
    }
