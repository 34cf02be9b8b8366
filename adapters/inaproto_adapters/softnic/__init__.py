"""softnic: a userspace RoCEv2 NIC over any frame port.

``ADAPTER.open(port, mac=..., ip=..., **limits)`` gives an ``inaproto.ports.Nic``; the limits are the
fields of :class:`SoftNicConfig`. The NIC owns the port: it runs and closes it.
"""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.ports import Adapter
from inaproto_adapters.softnic.nic import SoftNic, open_nic

__all__ = ["ADAPTER", "SoftNic", "SoftNicConfig", "SoftNicEngine", "open_nic"]

ADAPTER: Final = Adapter(name="softnic", kinds=frozenset({"nic"}), open=open_nic)
