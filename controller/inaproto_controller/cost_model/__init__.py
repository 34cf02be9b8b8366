"""``inaproto model``: what the cost models of the papers say, as tables, JSON and pictures.

A model is arithmetic on a paper's equations; nothing here is measured.
"""

from __future__ import annotations

import click

from inaproto.option_types import WholeGroup
from inaproto_controller.cost_model.netreduce_command import netreduce_command


@click.group(cls=WholeGroup)
def model() -> None:
    """Evaluate the cost models of the papers."""


model.add_command(netreduce_command)
