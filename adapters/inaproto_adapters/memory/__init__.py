"""Frame ports, control connections and a collective in memory, and weather over any frame port.

``load_adapter("memory").open(...)`` is :func:`open_memory_pair`; ``load_adapter("weather").open(...)``
is :class:`WeatherPort`; ``load_adapter("memory-collective").open(...)`` is :class:`MemoryCollective`.
:class:`MemoryNetwork` is a world in which whole daemons meet.
"""

from __future__ import annotations

from inaproto.ports import Adapter
from inaproto_adapters.memory.collective import COLLECTIVE, MemoryCollective, MemoryTree, tree_named
from inaproto_adapters.memory.link import Link, MemoryFramePort, open_memory_pair
from inaproto_adapters.memory.network import MemoryListener, MemoryNetwork, MemoryNode
from inaproto_adapters.memory.stream import MemoryStream, StreamTiming, open_stream_pair
from inaproto_adapters.memory.weather_port import WeatherPort

__all__ = [
    "ADAPTER",
    "COLLECTIVE",
    "WEATHER",
    "Link",
    "MemoryCollective",
    "MemoryFramePort",
    "MemoryListener",
    "MemoryNetwork",
    "MemoryNode",
    "MemoryStream",
    "MemoryTree",
    "StreamTiming",
    "WeatherPort",
    "open_memory_pair",
    "open_stream_pair",
    "tree_named",
]

ADAPTER = Adapter(name="memory", kinds=frozenset({"frame port pair"}), open=open_memory_pair)
WEATHER = Adapter(name="weather", kinds=frozenset({"weather"}), open=WeatherPort)
