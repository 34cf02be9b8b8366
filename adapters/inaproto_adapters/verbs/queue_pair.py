"""One queue pair of a device: its states, and what is posted on it and has not been completed.

Invariants: every request that was posted is completed once, by the device or, when the queue pair is
destroyed, as flushed; the device sees serial numbers of ours, so that a completion that failed, whose kind
verbs leave undefined, and one of a queue pair that is gone are told apart.

Of the writes of a batch the device tells the completion of each ``signal_every``-th and of the last one: that
says the same of those before it. A write for itself is told of at once. So whoever waits for a write needs no
later one, and at most ``signal_every - 1`` wait longer than they would.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable
from socket import ntohl
from typing import Any, Final

from inaproto.core.rdma.reliable_connection import MTUS, TIMEOUT_EXPONENT_MAX
from inaproto.errors import FabricError, InvariantBroken, LocalMisuse
from inaproto.ports import Completion, CompletionKind, QpAddress, QpAttributes, Status
from inaproto_adapters.verbs.library import verbs
from inaproto_adapters.verbs.paths import Path, name_of
from inaproto_adapters.verbs.requests import RECEIVES_CHAINED, Requests, link, sign

_RC: Final = 2
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2
_RETRIES_MAX: Final = 7
_HOP_LIMIT: Final = 64
SERVICE_LEVEL_MAX: Final = 7
"""A tag has three bits for a priority."""
_MIN_RNR_TIMER: Final = 1
"""Code of 10 us: the shortest."""
_INLINE_BYTES: Final = 128
"""Of a write that goes with its request."""
_SUCCESS: Final = Status.SUCCESS
_SEND: Final = CompletionKind.SEND
_RECEIVE: Final = CompletionKind.RECEIVE_IMM


class VerbsQueuePair:
    """Made in RESET and moved to INIT at once, so that receives may be posted."""

    def __init__(
        self, pd: Any, cq: Any, *, requests_max: int, segments_max: int, psn: int, port: int
    ) -> None:
        module = verbs("qp")

        def make(inline_max: int) -> Any:
            capacity = module.QPCap(
                max_send_wr=requests_max,
                max_recv_wr=requests_max,
                max_send_sge=segments_max,
                max_recv_sge=1,
                max_inline_data=inline_max,
            )
            return module.QP(pd, module.QPInitAttr(qp_type=_RC, scq=cq, rcq=cq, cap=capacity, sq_sig_all=0))

        self.inline_max = _INLINE_BYTES
        try:
            self.qp = make(_INLINE_BYTES)
        except verbs("pyverbs_error").PyverbsError:
            self.inline_max = 0
            self.qp = make(0)
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
        """Without ever having been connected, or the device took no more: nothing comes of what is posted;
        what the device has was told of as flushed."""
        self._port = port
        self._requests_max = requests_max
        self._signal_every = 1
        self._unsigned = 0
        """Writes since the last that the device tells of."""
        self._sends: deque[tuple[int, int]] = deque()
        """Serial number and ``wr_id`` of each, in the order of posting, which is that of completion."""
        self._receives: deque[tuple[int, int]] = deque()
        self._writes_batched: list[Any] = []
        self._receives_batched: list[int] = []
        self._has_erred = False

    @property
    def posted(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Serials and ``wr_id`` of writes and of receives that are not complete."""
        return list(self._sends), list(self._receives)

    def may_connect(self, attributes: QpAttributes, mtu_max: int) -> None:
        """From now on it counts as connected. Raises ``LocalMisuse``."""
        if self.is_connected:
            raise LocalMisuse(f"queue pair {self.qpn} is connected already")
        _check(attributes, mtu_max)
        self.is_connected = True

    def connect(self, remote: QpAddress, path: Path, attributes: QpAttributes, *, gid_index: int) -> None:
        """Ready to send to ``remote``, what waited first. Raises ``FabricError`` if the device refuses."""
        handle = address_handle(path, attributes, port=self._port, gid_index=gid_index)
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
            peer = f"{name_of(remote)} QP {remote.qpn}"
            raise FabricError("connect", peer, "moving to RTR", str(error), retryable=True) from None
        self.is_ready = True
        self._signal_every = attributes.signal_every
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._write(request)

    def fail(self, why: FabricError) -> list[Completion]:
        """It will never be connected: all that is posted fails, the first write as if nobody had answered."""
        self.refusal = why
        self.is_connected = True
        return self._give_up(Status.RETRY_EXCEEDED)

    def _give_up(self, status: Status) -> list[Completion]:
        self.has_failed = True
        found = self.flushed()
        if found and found[0].kind is CompletionKind.SEND:
            found[0] = found[0]._replace(status=status)
        return found

    def _post(self, verb: Callable[[Any], None], request: Any) -> None:
        try:
            verb(request)
        except verbs("pyverbs_error").PyverbsError as error:
            raise self._refused_by_device(error) from None

    def _refused_by_device(self, error: Exception) -> FabricError:
        return FabricError(
            "post", f"queue pair {self.qpn}", "handing it to the device", str(error), retryable=True
        )

    def _write(self, request: Any) -> None:
        sign(request)
        try:
            self._post(self.qp.post_send, request)
        finally:
            request.close()

    def post_send(self, serial: int, wr_id: int, request: Any, *, batched: bool) -> bool:
        """Whether it is in the batch, which is to be posted by ``post_batch``."""
        if len(self._sends) >= self._requests_max:
            self._refuse(len(self._sends), "sends")
        batched = batched and self.is_ready and not self.has_failed
        if batched:
            self._unsigned += 1
            if self._unsigned >= self._signal_every:
                sign(request)
                self._unsigned = 0
            self._writes_batched.append(request)
        elif self.has_failed:
            request.close()
        elif self.is_ready:
            self._write(request)
        else:
            self._waiting.append(request)
        self._sends.append((serial, wr_id))
        return batched

    def post_receive(self, serial: int, wr_id: int, requests: Requests, *, batched: bool) -> bool:
        """Whether it is in the batch."""
        if len(self._receives) >= self._requests_max:
            self._refuse(len(self._receives), "receives")
        batched = batched and not self.has_failed
        if batched:
            self._receives_batched.append(serial)
        elif not self.has_failed:
            self._post(self.qp.post_recv, requests.receives((serial,)))
        self._receives.append((serial, wr_id))
        return batched

    def post_batch(self, requests: Requests) -> None:
        """Hand the batch to the device: one call for its writes, one for each few receives, these first.

        Where the device refuses nothing more is posted, and all that is posted ends: raises ``FabricError``.
        """
        serials, writes = self._receives_batched, self._writes_batched
        try:
            if serials:
                self._receives_batched = []
                for at in range(0, len(serials), RECEIVES_CHAINED):
                    self.qp.post_recv(requests.receives(serials[at : at + RECEIVES_CHAINED]))
            if writes:
                sign(writes[-1])
                self._unsigned = 0
                try:
                    self.qp.post_send(link(writes))
                finally:
                    self._drop(writes)
        except verbs("pyverbs_error").PyverbsError as error:
            raise self._refused_by_device(error) from None

    def refused(self) -> list[Completion]:
        """The device took no more of a batch: what is posted has failed."""
        return self._give_up(Status.REMOTE_OPERATION)

    def _drop(self, writes: list[Any]) -> None:
        for request in writes:
            request.close()
        writes.clear()

    def _refuse(self, posted: int, what: str) -> None:
        raise LocalMisuse(f"queue pair {self.qpn} has {posted} {what} posted, which is all it holds")

    def completed(
        self, serial: int, status: Status, imm_data: int, nbytes: int, found: list[Completion]
    ) -> None:
        """Append what the device says of a request, for whoever posted it: and of the writes before it.

        ``imm_data``: in the order of bytes of the network.
        """
        receives = self._receives
        if receives and receives[0][0] == serial:
            _, wr_id = receives.popleft()
            if status is _SUCCESS:
                found.append(Completion(self.qpn, _RECEIVE, wr_id, status, ntohl(imm_data), nbytes))
            else:
                found.append(Completion(self.qpn, _RECEIVE, wr_id, status))
            return
        sends, at = self._sends, -1
        # Those before one that fails are complete; those behind it have failed with it.
        before = Status.FLUSHED if self._has_erred else _SUCCESS
        while sends and sends[0][0] <= serial:
            at, wr_id = sends.popleft()
            found.append(Completion(self.qpn, _SEND, wr_id, before if at < serial else status))
        if at < serial:
            raise InvariantBroken(f"queue pair {self.qpn}: request {serial} was completed out of order")
        if status is not _SUCCESS:
            self._has_erred = True

    def flushed(self) -> list[Completion]:
        """All that is posted still, which the device will not complete any more."""
        found = [Completion(self.qpn, CompletionKind.SEND, wr_id, Status.FLUSHED) for _, wr_id in self._sends]
        found += [
            Completion(self.qpn, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
            for _, wr_id in self._receives
        ]
        self._sends.clear()
        self._receives.clear()
        self._receives_batched.clear()
        self._drop(self._writes_batched)
        self._drop(self._waiting)
        return found

    def close(self) -> None:
        """Raises ``FabricError`` where the device is gone: then so is the queue pair."""
        try:
            self.qp.close()
        except verbs("pyverbs_error").PyverbsError as error:
            raise FabricError(
                "destroy", f"queue pair {self.qpn}", "closing it", str(error), retryable=False
            ) from None


def address_handle(path: Path, attributes: QpAttributes, *, port: int, gid_index: int) -> Any:
    """``AHAttr`` of a path. The hop limit is the packets' TTL, for which pyverbs takes 1: no router would let
    them pass."""
    address = verbs("addr")
    level = attributes.service_level
    if not path.dgid:
        return address.AHAttr(port_num=port, is_global=0, dlid=path.dlid, sl=level)
    route = address.GlobalRoute(
        # pyverbs reads an IPv6 address with all of its groups only.
        dgid=address.GID(ipaddress.IPv6Address(path.dgid).exploded),
        sgid_index=gid_index,
        hop_limit=_HOP_LIMIT,
        traffic_class=attributes.traffic_class,
    )
    return address.AHAttr(port_num=port, is_global=1, gr=route, dlid=path.dlid, sl=level)


def _check(attributes: QpAttributes, mtu_max: int) -> None:
    if attributes.mtu not in MTUS or attributes.mtu > mtu_max:
        raise LocalMisuse(f"mtu {attributes.mtu} is none of {MTUS} up to {mtu_max}, which the port has")
    if not 0 <= attributes.timeout <= TIMEOUT_EXPONENT_MAX:
        raise LocalMisuse(f"timeout {attributes.timeout} is not an exponent of 0 to {TIMEOUT_EXPONENT_MAX}")
    if not 0 <= attributes.traffic_class < 256:
        raise LocalMisuse(f"traffic class {attributes.traffic_class} is no byte")
    if not 0 <= attributes.service_level <= SERVICE_LEVEL_MAX:
        raise LocalMisuse(f"service level {attributes.service_level} is not 0 to {SERVICE_LEVEL_MAX}")
    for name in ("retry_count", "rnr_retry"):
        value = getattr(attributes, name)
        if not 0 <= value <= _RETRIES_MAX:
            raise LocalMisuse(f"{name} {value} is not 0 to {_RETRIES_MAX}")
