"""Events, words and records as text, for logs and the digest: arrays as the updates that are in them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np

from inaproto.sim.models.values import Values
from inaproto.wire.messages.clocks import NAMED, Clocks


def say(values: Values, what: object) -> str:
    """Fields in their order, without the class's name."""
    if isinstance(what, np.ndarray):
        return values.say(what)
    if isinstance(what, Clocks):
        return "{" + " ".join(f"{w}:{NAMED.get(c, c)}" for w, c in what.items()) + "}"
    if is_dataclass(what) and not isinstance(what, type):
        parts = [_part(values, field.name, getattr(what, field.name)) for field in fields(what)]
        return " ".join(part for part in parts if part)
    return str(what)


def _part(values: Values, name: str, value: object) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__} {say(values, value)}"
    return f"{name}={say(values, value)}"
