"""The training process's side: ``connect()``, ``connect_blocking()``, ``Communicator.all_reduce()``."""

from inaproto.client.communicator import (
    BlockingCommunicator,
    BlockingWork,
    Communicator,
    CommunicatorStatistics,
    OperationRecord,
    Work,
    connect,
    connect_blocking,
)

__all__ = [
    "BlockingCommunicator",
    "BlockingWork",
    "Communicator",
    "CommunicatorStatistics",
    "OperationRecord",
    "Work",
    "connect",
    "connect_blocking",
]
