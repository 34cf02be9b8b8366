"""Counters of a device, by the names of :meth:`inaproto.ports.Verbs.statistics`.

Devices count in files of their own names; of each list the first that is there is taken. What no file
tells stays 0: Soft-RoCE drops packets with a wrong ICRC without counting them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SYSFS: Final = Path("/sys/class/infiniband")

FILES: Final = {
    "packets_sent": ("hw_counters/sent_pkts", "counters/port_xmit_packets"),
    "packets_received": ("hw_counters/rcvd_pkts", "counters/port_rcv_packets"),
    "retransmits": ("hw_counters/completer_retry_err", "hw_counters/packet_seq_err"),
    "timeouts": ("hw_counters/local_ack_timeout_err",),
    "naks_sent": ("hw_counters/out_of_seq_request", "hw_counters/out_of_sequence"),
    "naks_received": ("hw_counters/rcvd_seq_err", "hw_counters/packet_seq_err"),
    "duplicates": ("hw_counters/duplicate_request",),
    "out_of_sequence": ("hw_counters/out_of_seq_request", "hw_counters/out_of_sequence"),
    "icrc_errors": ("hw_counters/rx_icrc_encapsulated",),
    "retry_exceeded": ("hw_counters/retry_exceeded_err", "hw_counters/req_transport_retries_exceeded"),
}


class DeviceCounters:
    """What was counted since this was made: the files count since the device is there."""

    def __init__(self, device: str, port: int) -> None:
        self._folder = _SYSFS / device / "ports" / str(port)
        self._timeouts = 0
        self._before = self._all()

    def read(self) -> dict[str, int]:
        return {name: value - self._before[name] for name, value in self._all().items()}

    def _all(self) -> dict[str, int]:
        found = {name: self._first(files) for name, files in FILES.items()}
        if not (self._folder / FILES["timeouts"][0]).exists():
            # Soft-RoCE counts a retry whatever made it. Those that no NAK can have asked for were made by the
            # timer. About: a NAK that it ignored hides one, and a NAK that acknowledges nothing new is not
            # counted by it, so that its retry is taken for one of the timer.
            self._timeouts = max(self._timeouts, found["retransmits"] - found["naks_received"])
            found["timeouts"] = self._timeouts
        return found

    def _first(self, files: tuple[str, ...]) -> int:
        for name in files:
            try:
                return int((self._folder / name).read_text(encoding="ascii"))
            except (OSError, ValueError):
                continue
        return 0
