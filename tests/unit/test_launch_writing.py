"""What the launcher writes of its ranks is whole, whoever reads it and however slowly."""

from __future__ import annotations

import os
import threading

import pytest

from inaproto.launch import output


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    """Whoever shares it may have made it so."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    data = os.urandom(1 << 20)
    read: list[bytes] = []

    def reads() -> None:
        while part := os.read(out, 1 << 16):
            read.append(part)

    reader = threading.Thread(target=reads)
    writer = threading.Thread(target=output._write_all, args=(into, data))
    writer.start()
    writer.join(0.05)  # the pipe is full by then, or soon
    reader.start()
    writer.join(60)
    os.close(into)
    reader.join(60)
    os.close(out)
    assert b"".join(read) == data


@pytest.mark.parametrize("is_one", [True, False])
def test_output_and_errors_that_are_one_pipe_have_one_lock(
    is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "sameopenfile", lambda one, other: is_one)
    locks = output._locks()
    assert (locks[1] is locks[2]) == is_one
