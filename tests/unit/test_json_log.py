"""--log-format json: one object a line, whatever is logged."""

from __future__ import annotations

import json
import logging
import sys

from inaproto.daemon.observe.json_log import JsonFormatter


def record(message: str, *given: object, extra: dict[str, object] | None = None) -> logging.LogRecord:
    return logging.getLogger("inaproto.host").makeRecord(
        "inaproto.host", logging.WARNING, __file__, 1, message, given, None, extra=extra
    )


def test_a_line_has_time_level_logger_message_and_fields() -> None:
    one = record("host %s has no switch:\n%s", "h0", "gone", extra={"job": "train", "path": {1, 2}})
    one.created = 1_700_000_000.25
    text = JsonFormatter().format(one)
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "inaproto.host",
        "message": "host h0 has no switch:\ngone",
        "fields": {"job": "train", "path": "{1, 2}"},
    }


def test_a_traceback_is_a_field() -> None:
    one = record("it failed")
    try:
        raise KeyError("x")
    except KeyError:
        one.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(one))
    assert line["message"] == "it failed"
    assert line["fields"]["exception"].endswith("KeyError: 'x'")
