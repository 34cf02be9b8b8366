"""What must happen now and then in control worlds; a campaign that never meets one tests too little."""

from __future__ import annotations

from typing import Final

DECLARED: Final[dict[str, str]] = {}
