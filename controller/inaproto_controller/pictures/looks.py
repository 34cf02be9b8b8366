"""How pages and pictures for people look: those of simulations, and that of a running controller."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

COLOURS: Final = ("#1f5fbf", "#c62828", "#2e7d32", "#8a5a00", "#6a3fa0", "#0b7a7c", "#6a7078", "#b8356a")
INK: Final = "#20242b"
PALE: Final = "#c9ced6"


def page_templates() -> Environment:
    """Everything that is put in is escaped; ``style`` is what goes into the element of that name."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["style"] = _style()
    return environment


@cache
def _style() -> Markup:
    return Markup(resources.files("inaproto_controller").joinpath("page.css").read_text("utf-8"))
