"""Bodies of requests that never come: nobody waits for them for ever, and nobody hears of a fault."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from inaproto_controller.service.api import BODY_S, _body


def request(*messages: dict[str, Any]) -> Request:
    """One of which these parts come, and then nothing."""

    coming = list(messages)

    async def receive() -> dict[str, Any]:
        if not coming:
            await trio.sleep_forever()
        return coming.pop(0)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    return Request(scope, receive)


HALF = {"type": "http.request", "body": b"{", "more_body": True}


async def test_half_a_body_is_waited_for_a_while(autojump_clock: object) -> None:
    began = trio.current_time()
    with pytest.raises(HTTPException) as told:
        await _body(request(HALF))
    assert told.value.status_code == 408
    assert trio.current_time() - began == pytest.approx(BODY_S)


async def test_a_connection_that_ends_in_the_middle_is_no_fault_of_ours() -> None:
    with pytest.raises(HTTPException) as told:
        await _body(request(HALF, {"type": "http.disconnect"}))
    assert told.value.status_code == 400


async def test_a_body_in_parts_is_whole() -> None:
    rest = {"type": "http.request", "body": b"}", "more_body": False}
    assert await _body(request(HALF, rest)) == {}
