"""verbs: RoCE NICs of this machine through the kernel's RDMA stack (pyverbs), as ``inaproto.ports.Nic``.

``ADAPTER.open(ip=..., **limits)`` opens the device that has this address, ``open(gid=...)`` a port on
InfiniBand; pyverbs is imported only then.
"""

from __future__ import annotations

from typing import Final

from inaproto.ports import Adapter
from inaproto_adapters.verbs.devices import Device, find_device, list_devices
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic, open_nic

__all__ = ["ADAPTER", "Device", "VerbsConfig", "VerbsNic", "find_device", "list_devices", "open_nic"]

ADAPTER: Final = Adapter(name="verbs", kinds=frozenset({"hardware nic"}), open=open_nic)
