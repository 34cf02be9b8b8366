"""The log as one JSON object a line: time, level, logger, message, fields."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest is what ``extra`` gave."""


class JsonFormatter(logging.Formatter):
    """``fields``: what the caller gave as ``extra``, and ``exception`` with a traceback; else empty."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            name: value for name, value in vars(record).items() if name not in _STANDARD
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "fields": fields,
        }
        return json.dumps(line, default=str)
