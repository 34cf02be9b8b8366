"""inaproto: all-reduces that are summed in the network.

A training process needs this much::

    with inaproto.connect_blocking("job", rank, size=4, key="secret") as comm:
        total = comm.all_reduce(gradient).wait()

or, in a Trio program, ``await inaproto.connect(...)`` and ``await comm.all_reduce(gradient)``.

The names are loaded when they are first used: the command line and the protocol cores import parts of
this package without the client's event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inaproto.client import (
        BlockingCommunicator,
        BlockingModel,
        BlockingWork,
        Communicator,
        CommunicatorStatistics,
        Model,
        OperationRecord,
        PullRecord,
        Work,
        connect,
        connect_blocking,
        connect_model,
        connect_model_blocking,
    )
    from inaproto.errors import (
        DaemonUnreachable,
        FabricLost,
        InaprotoError,
        JobError,
        JoinRefused,
        LocalMisuse,
        OperationTimeout,
        RankLost,
        SwitchUnreachable,
        TensorMismatch,
    )

__all__ = [
    "BlockingCommunicator",
    "BlockingModel",
    "BlockingWork",
    "Communicator",
    "CommunicatorStatistics",
    "DaemonUnreachable",
    "FabricLost",
    "InaprotoError",
    "JobError",
    "JoinRefused",
    "LocalMisuse",
    "Model",
    "OperationRecord",
    "OperationTimeout",
    "PullRecord",
    "RankLost",
    "SwitchUnreachable",
    "TensorMismatch",
    "Work",
    "connect",
    "connect_blocking",
    "connect_model",
    "connect_model_blocking",
]

_SOURCES = ("inaproto.errors", "inaproto.client")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for source in _SOURCES:
            module = import_module(source)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
