"""One queue pair of a device: its states, and what is posted on it and has not been completed.

Invariants: every request that was posted is completed once, by the device or, when the queue pair is
destroyed, as flushed; the device sees serial numbers of ours, so that a completion that failed, whose kind
verbs leave undefined, and one of a queue pair that is gone are told apart.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from inaproto.core.rdma.reliable_connection import MTUS, TIMEOUT_EXPONENT_MAX
from inaproto.errors import FabricError, InvariantBroken, LocalMisuse
from inaproto.ports import Completion, CompletionKind, QpAddress, QpAttributes, Status
from inaproto_adapters.verbs.library import verbs

_RC: Final = 2
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2
_RETRIES_MAX: Final = 7
_HOP_LIMIT: Final = 64
_MIN_RNR_TIMER: Final = 1
"""Code of 10 us: the shortest."""


class VerbsQueuePair:
    """Made in RESET and moved to INIT at once, so that receives may be posted."""

    def __init__(
        self, pd: Any, cq: Any, *, requests_max: int, segments_max: int, psn: int, port: int
    ) -> None:
        module = verbs("qp")
        capacity = module.QPCap(
            max_send_wr=requests_max,
            max_recv_wr=requests_max,
            max_send_sge=segments_max,
            max_recv_sge=1,
            max_inline_data=0,
        )
        made = module.QPInitAttr(qp_type=_RC, scq=cq, rcq=cq, cap=capacity, sq_sig_all=1)
        self.qp = module.QP(pd, made)
        initial = module.QPAttr(port_num=port)
        initial.qp_access_flags = _LOCAL_WRITE | _REMOTE_WRITE
        self.qp.to_init(initial)
        self.qpn: Final[int] = self.qp.qp_num
        self.psn: Final = psn
        self.is_connected = False
        """Or is about to be: what is posted until then waits."""
        self.is_ready = False
        """What the peer sends is taken."""
        self.refusal: FabricError | None = None
        """Why it will never be connected, though it was to be."""
        self._waiting: list[Any] = []
        """Writes that were posted before the peer was resolved."""
        self.has_failed = False
        """Without ever having been connected: nothing comes of what is posted; what the device has was told
        of as flushed."""
        self._port = port
        self._requests_max = requests_max
        self._sends: deque[tuple[int, int]] = deque()
        """Serial number and ``wr_id`` of each, in the order of posting, which is that of completion."""
        self._receives: deque[tuple[int, int]] = deque()

    def may_connect(self, attributes: QpAttributes, mtu_max: int) -> None:
        """From now on it counts as connected. Raises ``LocalMisuse``."""
        if self.is_connected:
            raise LocalMisuse(f"queue pair {self.qpn} is connected already")
        _check(attributes, mtu_max)
        self.is_connected = True

    def connect(self, remote: QpAddress, attributes: QpAttributes, *, gid_index: int) -> None:
        """Ready to send to ``remote``, what waited first. Raises ``FabricError`` if the device refuses."""
        handle = address_handle(remote.ip, attributes.traffic_class, port=self._port, gid_index=gid_index)
        wanted = verbs("qp").QPAttr(port_num=self._port)
        wanted.qp_access_flags = _LOCAL_WRITE | _REMOTE_WRITE
        wanted.path_mtu = MTUS.index(attributes.mtu) + 1
        wanted.dest_qp_num = remote.qpn
        wanted.rq_psn = remote.psn
        wanted.sq_psn = self.psn
        wanted.timeout = attributes.timeout
        wanted.retry_cnt = attributes.retry_count
        wanted.rnr_retry = attributes.rnr_retry
        wanted.min_rnr_timer = _MIN_RNR_TIMER
        wanted.max_rd_atomic = 1
        wanted.max_dest_rd_atomic = 1
        wanted.ah_attr = handle
        try:
            self.qp.to_rtr(wanted)
            self.qp.to_rts(wanted)
        except verbs("pyverbs_error").PyverbsError as error:
            self.is_connected = False
            peer = ipaddress.IPv4Address(remote.ip)
            raise FabricError(
                "connect", f"{peer} QP {remote.qpn}", "moving to RTR", str(error), retryable=True
            ) from None
        self.is_ready = True
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._post(self.qp.post_send, request)

    def fail(self, why: FabricError) -> list[Completion]:
        """It will never be connected: all that is posted fails, the first write as if nobody had answered."""
        self.refusal = why
        self.has_failed = self.is_connected = True
        self._waiting.clear()
        found = self.flushed()
        if found and found[0].kind is CompletionKind.SEND:
            found[0] = found[0]._replace(status=Status.RETRY_EXCEEDED)
        return found

    def _post(self, verb: Callable[[Any], None], request: Any) -> None:
        try:
            verb(request)
        except verbs("pyverbs_error").PyverbsError as error:
            raise FabricError(
                "post", f"queue pair {self.qpn}", "handing it to the device", str(error), retryable=True
            ) from None

    def post_send(self, serial: int, wr_id: int, request: Any) -> None:
        self._require_room(self._sends, "sends")
        if self.is_ready:
            self._post(self.qp.post_send, request)
        elif not self.has_failed:
            self._waiting.append(request)
        self._sends.append((serial, wr_id))

    def post_receive(self, serial: int, wr_id: int, request: Any) -> None:
        self._require_room(self._receives, "receives")
        if not self.has_failed:
            self._post(self.qp.post_recv, request)
        self._receives.append((serial, wr_id))

    def _require_room(self, posted: deque[tuple[int, int]], what: str) -> None:
        if len(posted) >= self._requests_max:
            raise LocalMisuse(f"queue pair {self.qpn} has {len(posted)} {what} posted, which is all it holds")

    def completed(self, serial: int, status: Status, imm: int, nbytes: int) -> Completion:
        """What the device says of a request, for whoever posted it."""
        if self._sends and self._sends[0][0] == serial:
            return Completion(self.qpn, CompletionKind.SEND, self._sends.popleft()[1], status)
        if not self._receives or self._receives[0][0] != serial:
            raise InvariantBroken(f"queue pair {self.qpn}: request {serial} was completed out of order")
        done = status is Status.SUCCESS
        return Completion(
            self.qpn,
            CompletionKind.RECEIVE_IMM,
            self._receives.popleft()[1],
            status,
            imm if done else 0,
            nbytes if done else 0,
        )

    def flushed(self) -> list[Completion]:
        """All that is posted still, which the device will not complete any more."""
        found = [Completion(self.qpn, CompletionKind.SEND, wr_id, Status.FLUSHED) for _, wr_id in self._sends]
        found += [
            Completion(self.qpn, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
            for _, wr_id in self._receives
        ]
        self._sends.clear()
        self._receives.clear()
        return found

    def close(self) -> None:
        """Raises ``FabricError`` where the device is gone: then so is the queue pair."""
        try:
            self.qp.close()
        except verbs("pyverbs_error").PyverbsError as error:
            raise FabricError(
                "destroy", f"queue pair {self.qpn}", "closing it", str(error), retryable=False
            ) from None


def address_handle(ip: bytes, traffic_class: int, *, port: int, gid_index: int) -> Any:
    """``AHAttr`` of the peer ``ip``. The hop limit is the packets' TTL, for which pyverbs takes 1: no router
    would let them pass."""
    address = verbs("addr")
    # pyverbs reads an IPv6 address with all of its groups only.
    mapped = ipaddress.IPv6Address(bytes(10) + b"\xff\xff" + ip).exploded
    route = address.GlobalRoute(
        dgid=address.GID(mapped), sgid_index=gid_index, hop_limit=_HOP_LIMIT, traffic_class=traffic_class
    )
    return address.AHAttr(port_num=port, is_global=1, gr=route, dlid=0)


def _check(attributes: QpAttributes, mtu_max: int) -> None:
    if attributes.mtu not in MTUS or attributes.mtu > mtu_max:
        raise LocalMisuse(f"mtu {attributes.mtu} is none of {MTUS} up to {mtu_max}, which the port has")
    if not 0 <= attributes.timeout <= TIMEOUT_EXPONENT_MAX:
        raise LocalMisuse(f"timeout {attributes.timeout} is not an exponent of 0 to {TIMEOUT_EXPONENT_MAX}")
    if not 0 <= attributes.traffic_class < 256:
        raise LocalMisuse(f"traffic class {attributes.traffic_class} is no byte")
    for name in ("retry_count", "rnr_retry"):
        value = getattr(attributes, name)
        if not 0 <= value <= _RETRIES_MAX:
            raise LocalMisuse(f"{name} {value} is not 0 to {_RETRIES_MAX}")
