"""Lines of a process, each with a label before it, so that those of several processes can be told apart."""

from __future__ import annotations

import re
from typing import Final

LINE_BYTES_MAX: Final = 1 << 16
"""A line that is longer goes out in pieces, each with the label."""
_END: Final = re.compile(rb"\r\n|\n|\r(?!\n|\Z)")
"""A carriage return ends a line, too: progress bars have nothing else. Whether a newline follows the last one
of what has come so far is not known yet."""


class LabelledLines:
    """One stream of one process."""

    def __init__(self, label: str) -> None:
        self._label = label.encode()
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """All lines that have come to their end by ``data``."""
        self._rest += data
        out = []
        begin = 0
        for end in _END.finditer(self._rest):
            out.append(self._label + self._rest[begin : end.end()])
            begin = end.end()
        self._rest = self._rest[begin:]
        while len(self._rest) > LINE_BYTES_MAX:
            out.append(self._label + self._rest[:LINE_BYTES_MAX] + b"\n")
            self._rest = self._rest[LINE_BYTES_MAX:]
        return b"".join(out)

    def end(self) -> bytes:
        """What is left when the stream ends, as a line."""
        rest, self._rest = self._rest, b""
        return self._label + rest + (b"" if rest.endswith((b"\n", b"\r")) else b"\n") if rest else b""
