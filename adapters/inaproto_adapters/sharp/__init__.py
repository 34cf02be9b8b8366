"""sharp: all-reduces by NVIDIA's SHARP through libsharp_coll, loaded by ctypes when it is opened.

Layout and order of calls are checked against the documented interface and a test double. It has never run on
SHARP hardware; docs/sharp.md says what that means.
"""

from __future__ import annotations

from typing import Final

from inaproto.ports import Adapter
from inaproto_adapters.sharp.collective import SharpCollective, open_sharp
from inaproto_adapters.sharp.config import SharpConfig

__all__ = ["ADAPTER", "SharpCollective", "SharpConfig", "open_sharp"]

ADAPTER: Final = Adapter(name="sharp", kinds=frozenset({"collective"}), open=open_sharp)
