"""The blocks that can be measured one by one, and the whole."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto_hil.rtl.parameters import Parameters


def _block(module: str, name: str, make: Callable[[Any, Parameters], Any]) -> Callable[[Parameters], Any]:
    def made(parameters: Parameters) -> Any:
        path = f"inaproto_hil.rtl.{module}"
        if importlib.util.find_spec(path) is None:
            raise Unsupported(name, f"there is no {path}")
        block = getattr(importlib.import_module(path), name, None)
        if block is None:
            raise Unsupported(name, f"{path} has none")
        return make(block, parameters)

    return made


_COUNTERS: Final = 16
"""As many as the register map has."""
BLOCKS: Final[Mapping[str, Callable[[Parameters], Any]]] = {
    "Adder": _block("floats", "Adder", lambda block, _: block()),
    "Fold": _block("fold", "Fold", lambda block, sizes: block(sizes.words, sizes.children)),
    "IcrcCheck": _block("icrc", "IcrcCheck", lambda block, sizes: block(sizes.words)),
    "IcrcSeal": _block("icrc", "IcrcSeal", lambda block, sizes: block(sizes.words)),
    "Align": _block("align", "Align", lambda block, sizes: block(sizes.words)),
    "Unalign": _block("align", "Unalign", lambda block, sizes: block(sizes.words)),
    "Parser": _block("parser", "Parser", lambda block, _: block()),
    "Receiver": _block("receiver", "Receiver", lambda block, sizes: block(sizes)),
    "BridgeTable": _block("bridge", "BridgeTable", lambda block, sizes: block(sizes.ports, sizes.addresses)),
    "Emitter": _block("emitter", "Emitter", lambda block, sizes: block(sizes)),
    "Egress": _block(
        "egress", "Egress", lambda block, sizes: block(sizes.words, sizes.ports, sizes.foreign_beats)
    ),
    "Registers": _block("csr", "Registers", lambda block, sizes: block(sizes, _COUNTERS)),
    "Engine": _block("engine", "Engine", lambda block, sizes: block(sizes)),
    "Accelerator": _block("top", "Accelerator", lambda block, sizes: block(sizes)),
}
"""Makers of the blocks. They raise ``Unsupported`` for one that is not there."""
TOP: Final = "Accelerator"
