"""Messages that the hosts of a ring send each other where no accelerator adds (docs/protocol.md 9.1).

What the engines of such paths (:mod:`inaproto.core.host.engines.chain`,
:mod:`inaproto.core.host.engines.ring`, :mod:`inaproto.core.host.engines.host_tree`) share: the numbers and
headers of messages, what is wrong with one that came, and which header slots the transport still needs.

Slots: message ``msg_id`` is accumulators (even) or result (odd) of serial ``msg_id // 2``; receive and header
slot are ``msg_id mod 2N``, N being the window.

Invariant: sends complete in the order in which they were posted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from inaproto.core.host.message_window import WindowConfig
from inaproto.core.host.operation_queue import Part
from inaproto.core.host.operations import ResultArrived, RingConfig
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import Blame, DecodeError, FabricLost, LocalMisuse, TensorMismatch
from inaproto.units import MsgId
from inaproto.wire.host_header import HOST_HEADER_BYTES, HostHeader, Kind
from inaproto.wire.ina_header import FLAG_LAST, InaHeader

TENSORS_DIFFER: Final = "tensors differ"
"""Rule of a blame that means: ranks called different all-reduces."""


class Contradiction(NamedTuple):
    """A message that is not the one that had to come, and the code of the error that follows."""

    blame: Blame
    code: str = FabricLost.code


class Sent(NamedTuple):
    """A message that counts as sent."""

    msg_id: MsgId
    slot: int
    header: bytes


class HostSums(Protocol):
    """How the hosts of a ring add, as far as their messages depend on it."""

    @property
    def plan(self) -> ReductionPlan: ...

    def slot_bytes(self, tensor_bytes: int) -> int:
        """Size of a slot that takes any message, its header included."""


class HostMessages:
    """Those that one rank of one ring exchanges with another, or sends to the one and gets from the other.

    ``sender`` is the rank from which messages come; None: the predecessor in the ring. Raises ``LocalMisuse``
    for rings that cannot be.
    """

    def __init__(self, config: RingConfig, accumulators: HostSums, *, sender: int | None = None) -> None:
        if accumulators.plan.size != config.ring_size:
            raise LocalMisuse(f"a plan of {accumulators.plan.size} ranks in a ring of {config.ring_size}")
        if -(-accumulators.slot_bytes(config.tensor_bytes) // config.mtu) >= 1 << 16:
            raise LocalMisuse(
                f"accumulators of {accumulators.plan} do not fit the header's 16 bits of packets"
            )
        WindowConfig(config.window_messages, config.id_bits)
        self._config = config
        self._sender = config.predecessor if sender is None else sender
        self._sends: deque[int] = deque()
        """Messages whose send is not complete."""
        self._busy: set[int] = set()
        """Their header slots."""

    @property
    def unacknowledged(self) -> int:
        return len(self._sends)

    def msg_id(self, kind: Kind, serial: int) -> MsgId:
        return MsgId((2 * serial + (kind is Kind.RESULT)) & ((1 << self._config.id_bits) - 1))

    def slot(self, kind: Kind, serial: int) -> int:
        return self.msg_id(kind, serial) % self._config.slots

    def may_send(self, kind: Kind, serial: int) -> bool:
        """Whether the send that used its header slot before is complete."""
        return self.slot(kind, serial) not in self._busy

    def send(self, kind: Kind, serial: int, part: Part, nbytes: int) -> Sent:
        """Count a message of ``nbytes`` payload bytes as sent."""
        msg_id, slot = self.msg_id(kind, serial), self.slot(kind, serial)
        self._sends.append(msg_id)
        self._busy.add(slot)
        return Sent(msg_id, slot, self._header(kind, serial, part, self._config.rank, nbytes).encode())

    def send_completed(self, msg_id: int) -> Blame | None:
        """The oldest send is complete; what is wrong if it is another one."""
        if not self._sends or self._sends[0] != msg_id:
            due = self._sends[0] if self._sends else "none"
            evidence = f"message {msg_id} where {due} is due"
            return Blame("transport", "send completed out of order", evidence)
        self._sends.popleft()
        self._busy.remove(msg_id % self._config.slots)
        return None

    def contradiction(
        self, event: ResultArrived, kind: Kind, serial: int, part: Part, nbytes: int
    ) -> Contradiction | None:
        """What is wrong with a message that has to have ``nbytes`` payload bytes; None if nothing is."""
        expected = self._header(kind, serial, part, self._sender, nbytes)
        if event.header == expected.encode() and event.nbytes == HOST_HEADER_BYTES + nbytes:
            return None
        peer, name = f"rank {self._sender}", kind.name.lower()
        try:
            got = HostHeader.decode(event.header)
        except DecodeError as error:
            return Contradiction(Blame(peer, f"{name} without a valid header", str(error)))
        if got == expected:
            evidence = f"{event.nbytes} bytes, expected {HOST_HEADER_BYTES + nbytes}"
            return Contradiction(Blame(peer, f"{name} size", evidence))
        key = "" if got.fields.key == expected.fields.key else " and a wrong key"
        blame = Blame(peer, f"{name} header", f"got {got}{key}, expected {expected}")
        called = expected.fields
        as_called_here = replace(
            got.fields,
            dtype=called.dtype,
            op=called.op,
            flags=called.flags,
            signature=called.signature,
            msg_len=called.msg_len,
        )
        if got.kind is kind and as_called_here == called:
            return Contradiction(replace(blame, rule=TENSORS_DIFFER), TensorMismatch.code)
        return Contradiction(blame)

    def _header(self, kind: Kind, serial: int, part: Part, rank: int, nbytes: int) -> HostHeader:
        config, operation = self._config, part.operation
        fields = InaHeader(
            dtype=operation.dtype,
            op=operation.op,
            flags=FLAG_LAST if part.is_last else 0,
            ring_id=config.ring_id,
            epoch=config.epoch,
            op_index=operation.index,
            msg_id=self.msg_id(kind, serial),
            rank=rank,
            ring_size=config.ring_size,
            msg_len=-(-(HOST_HEADER_BYTES + nbytes) // config.mtu),
            signature=operation.signature,
            key=config.key,
        )
        return HostHeader(kind, fields)
