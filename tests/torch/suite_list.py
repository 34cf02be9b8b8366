"""Tests of torch's own suite that pass with gloo and not with inaproto: name, reason."""

from __future__ import annotations

from typing import Final

FAILING: Final[dict[str, str]] = {}
