"""What the simulator of MINA's authors answers; see SOURCE.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def reference(name: str) -> Any:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text())
