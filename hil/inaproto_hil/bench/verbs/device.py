"""A RoCE device without hardware, under pyverbs: it takes work requests, and completes them when told to.

What pyverbs makes for each message (``SGE``, ``SendWR``, ``RecvWR``, ``WC``) is real where pyverbs is
installed, so that its time is counted; else, and where ``real`` is false, objects of Python stand for them.
Calls that would reach a device are counted and do nothing.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto_adapters.verbs import library
from inaproto_adapters.verbs.devices import Device

OWN: Final = Device("stub0", 1, b"\x0a\0\0\1", b"\2\0\x0a\0\0\1", "", 1, 4096)
_SIGNALED: Final = 2
_MODULES: Final = ("pyverbs_error", "device", "pd", "cq", "wr", "mr", "qp", "addr")


class PyverbsError(Exception):
    """What a device refuses."""


class _Part:
    """Any object of pyverbs that nobody asks anything of: it keeps what it is given by name."""

    def __init__(self, *given: Any, **fields: Any) -> None:
        self.__dict__.update(fields)

    def close(self) -> None:
        """Nothing is held."""


class Sge(_Part):
    """``ibv_sge``."""

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr, self.length, self.lkey = addr, length, lkey


class _Request(_Part):
    next_wr: Any = None
    wr_id: int = 0


class SendWr(_Request):
    """``ibv_send_wr``: it copies what its segments are."""

    def __init__(
        self, wr_id: int, opcode: int, num_sge: int, imm_data: int, sg: Sequence[Sge], send_flags: int
    ) -> None:
        self.wr_id, self.opcode, self.imm_data, self.send_flags = wr_id, opcode, imm_data, send_flags
        self.sg = [(one.addr, one.length, one.lkey) for one in sg[:num_sge]]
        self.remote = (0, 0)
        self.is_closed = False

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Where to."""
        self.remote = (rkey, addr)

    def close(self) -> None:
        """What it held is given back, once."""
        assert not self.is_closed
        self.is_closed = True


class RecvWr(_Request):
    """``ibv_recv_wr``."""

    def __init__(self, wr_id: int, num_sge: int, sg: Sequence[Sge]) -> None:
        self.wr_id = wr_id


class Wc:
    """``ibv_wc``."""

    def __init__(self, **fields: int) -> None:
        self.wr_id = self.status = self.opcode = self.byte_len = self.qp_num = self.imm_data = 0
        self.__dict__.update(fields)


class StubbedDevice:
    """What was asked of it, and what it has completed and nobody has polled."""

    def __init__(self, *, real: bool = True) -> None:
        self.calls: Counter[str] = Counter()
        """Calls of the device."""
        self.at_call: dict[str, Callable[[], object]] = {}
        """What happens meanwhile."""
        self.refuses: set[str] = set()
        """Calls that fail."""
        self.chains: list[list[Any]] = []
        """Writes of each call, where they are objects of Python."""
        self.access: list[int] = []
        """Flags of memory that was registered."""
        self.addresses: list[Any] = []
        """Of peers."""
        self.received: list[int] = []
        """Receives that were posted, where they are objects of Python."""
        self.inline_max = 1 << 10
        self.signalled: set[int] = set()
        """Numbers of writes whose completion it is to tell."""
        self.writes: list[Any] = []
        """Made, and not posted."""
        self.completed: deque[dict[str, int]] = deque()
        self._made = 0
        self.is_real = real and _real_requests() is not None
        """Whether requests and completions are pyverbs' own."""
        requests, completion = (_real_requests() if self.is_real else None) or (
            SimpleNamespace(SGE=Sge, SendWR=SendWr, RecvWR=RecvWr),
            Wc,
        )
        self._completion = completion
        self._parts: dict[str, Any] = {
            "PyverbsError": PyverbsError,
            "Context": self._context,
            "CompChannel": _Channel,
            "CQ": self._queue,
            "QP": self._queue_pair,
            "MR": self._region,
            "AHAttr": self._address,
            "SGE": requests.SGE,
            "SendWR": self._write(requests.SendWR),
            "RecvWR": requests.RecvWR,
        }

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Whatever imports pyverbs by way of the adapter gets this device."""
        before = {name: sys.modules.get(name) for name in _names()}
        for name in _names():
            module = ModuleType(name)
            module.__dict__["__getattr__"] = lambda wanted: self._parts.get(wanted, _Part)
            sys.modules[name] = module
        library.verbs.cache_clear()
        try:
            yield
        finally:
            library.verbs.cache_clear()
            for name, module_before in before.items():
                if module_before is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module_before

    def _write(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any) -> Any:
            request = make(*given)
            self.writes.append(request)
            return request

        return made

    def call(self, name: str) -> None:
        """Count it. Raises ``PyverbsError`` where it is refused."""
        self.calls[name] += 1
        self.at_call.get(name, _nothing)()
        if name in self.refuses:
            raise PyverbsError(f"Failed to {name}")

    def take_writes(self, first: Any) -> None:
        """A chain of writes is posted: all that were made, for one queue pair sends at a time."""
        if not self.is_real:
            self.chains.append([first])
            while self.chains[-1][-1].next_wr is not None:
                self.chains[-1].append(self.chains[-1][-1].next_wr)
        for request in self.writes:
            if request.send_flags & _SIGNALED:
                self.signalled.add(request.wr_id)
        self.calls["writes"] += len(self.writes)
        self.writes.clear()

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _context(self, **fields: Any) -> Any:
        limits = SimpleNamespace(max_qp=1024, max_qp_wr=1 << 14, max_sge=16, max_cqe=1 << 16)
        return _Device(limits)

    def _queue(self, *given: Any) -> Any:
        return _Completions(self)

    def _queue_pair(self, pd: Any, attributes: Any) -> Any:
        if attributes.cap.max_inline_data > self.inline_max:
            raise PyverbsError("Failed to create QP: Invalid argument")
        return _QueuePair(self, self._number())

    def _address(self, **fields: Any) -> Any:
        self.addresses.append(_Part(**fields))
        return self.addresses[-1]

    def _region(self, pd: Any, nbytes: int, access: int, *, address: int) -> Any:
        self.call("reg_mr")
        self.access.append(access)
        key = self._number()
        return _Region(self, lkey=key, rkey=key)

    def poll(self, most: int) -> tuple[int, list[Any]]:
        """As ``CQ.poll`` does it: an object for each."""
        self.call("poll")
        made: list[Any] = []
        while self.completed and len(made) < most:
            made.append(self._completion(**self.completed.popleft()))
        self.calls["completions"] += len(made)
        return len(made), made


class _Region(_Part):
    def __init__(self, device: StubbedDevice, **fields: Any) -> None:
        super().__init__(**fields)
        self._device = device

    def close(self) -> None:
        self._device.calls["dereg_mr"] += 1


class _Device(_Part):
    def __init__(self, limits: Any) -> None:
        self._limits = limits

    def query_device(self) -> Any:
        return self._limits


class _Channel(_Part):
    def __init__(self, context: Any) -> None:
        self.fd, self._other = os.pipe()

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._other)


class _Completions(_Part):
    def __init__(self, device: StubbedDevice) -> None:
        self.poll = device.poll

    def req_notify(self) -> None:
        """Nobody waits."""


class _QueuePair(_Part):
    def __init__(self, device: StubbedDevice, number: int) -> None:
        self._device = device
        self.qp_num = number

    def to_init(self, attributes: Any) -> None:
        """It takes receives."""

    to_rtr = to_rts = to_init

    def post_send(self, request: Any) -> None:
        """Taken."""
        self._device.call("post_send")
        self._device.take_writes(request)

    def post_recv(self, request: Any) -> None:
        """Taken."""
        self._device.call("post_recv")
        if not self._device.is_real:
            while request is not None:
                self._device.received.append(request.wr_id)
                request = request.next_wr


def _nothing() -> None: ...


def _names() -> list[str]:
    return ["pyverbs", *(f"pyverbs.{name}" for name in _MODULES)]


def _real_requests() -> tuple[Any, Any] | None:
    """Modules of pyverbs whose objects need no device: of requests, and what a completion is."""
    try:
        return library.verbs("wr"), library.verbs("cq").WC
    except Unsupported:
        return None
