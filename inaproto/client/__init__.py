"""The training process's side: ``connect()``, ``connect_blocking()``, ``Communicator.all_reduce()``."""

from inaproto.client.blocking_communicator import BlockingCommunicator, connect_blocking
from inaproto.client.communicator import Communicator, CommunicatorStatistics, OperationRecord, connect
from inaproto.client.model import BlockingModel, Model, PullRecord, connect_model, connect_model_blocking
from inaproto.client.works import BlockingWork, Work

__all__ = [
    "BlockingCommunicator",
    "BlockingModel",
    "BlockingWork",
    "Communicator",
    "CommunicatorStatistics",
    "Model",
    "OperationRecord",
    "PullRecord",
    "Work",
    "connect",
    "connect_blocking",
    "connect_model",
    "connect_model_blocking",
]
