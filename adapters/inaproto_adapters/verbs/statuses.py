"""Work completion statuses of verbs (``enum ibv_wc_status``) as those of the port."""

from __future__ import annotations

from typing import Final

from inaproto.ports import Status

_STATUSES: Final = {
    0: Status.SUCCESS,
    5: Status.FLUSHED,
    9: Status.REMOTE_INVALID_REQUEST,
    10: Status.REMOTE_ACCESS,
    11: Status.REMOTE_OPERATION,
    12: Status.RETRY_EXCEEDED,
    13: Status.RNR_RETRY_EXCEEDED,
}
NAMES: Final = (
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "work request flushed",
    "memory window bind error",
    "bad response",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation",
    "remote invalid RD request",
    "remote aborted",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout",
    "general error",
)


def decode(status: int) -> Status:
    """A status without a name of its own at the port is an error of operation; the log says which."""
    return _STATUSES.get(status, Status.REMOTE_OPERATION)


def name(status: int) -> str:
    return NAMES[status] if 0 <= status < len(NAMES) else f"status {status}"
