"""All-reduces of PyTorch's process groups by inaproto: a backend by name, and one behind gloo's name.

``init_process_group("inaproto")`` makes a group whose all-reduces inaproto carries; all else of it is gloo's.
A script that names gloo is served without a change where ``INAPROTO_TORCH=gloo`` is in its environment, as
``inaproto run`` sets it. Both begin at :mod:`inaproto.torch.autoload`, which torch itself loads.

torch is imported by the modules of this package and nowhere else, and not by this one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inaproto.torch import hooks as hooks
    from inaproto.torch.record import GroupStatus, TorchStatus, status

__all__ = ["GroupStatus", "TorchStatus", "hooks", "status"]


def __getattr__(name: str) -> Any:
    if name == "hooks":
        return import_module("inaproto.torch.hooks")
    if name in __all__:
        return getattr(import_module("inaproto.torch.record"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
