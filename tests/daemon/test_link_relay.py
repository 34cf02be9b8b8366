"""The link that demo and tests cut: both ends notice, nobody answers, and mended it carries again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inaproto_hil.rigs.link_relay import LinkRelay

DEADLINE_S = 600.0


def dial(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(DEADLINE_S)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return sock


@pytest.fixture
def above(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.settimeout(DEADLINE_S)
        listener.bind(str(tmp_path / "above.sock"))
        listener.listen()
        yield listener


def test_bytes_pass_both_ways_in_order(tmp_path: Path, above: socket.socket) -> None:
    relay = LinkRelay(tmp_path / "link.sock", tmp_path / "above.sock")
    with closing(dial(tmp_path / "link.sock")) as below, closing(above.accept()[0]) as up:
        up.settimeout(DEADLINE_S)
        sent = bytes(range(256)) * 1000
        below.sendall(sent)
        with up.makefile("rb") as stream:
            assert stream.read(len(sent)) == sent
        up.sendall(sent[::-1])
        with below.makefile("rb") as stream:
            assert stream.read(len(sent)) == sent[::-1]
        assert relay.connections == 1
        relay.cut()


def test_a_cut_ends_both_streams_and_nobody_answers_until_it_is_mended(
    tmp_path: Path, above: socket.socket
) -> None:
    relay = LinkRelay(tmp_path / "link.sock", tmp_path / "above.sock")
    for cuts in (1, 2):
        with closing(dial(tmp_path / "link.sock")) as below, closing(above.accept()[0]) as up:
            up.settimeout(DEADLINE_S)
            below.sendall(b"here")
            assert up.recv(4) == b"here"
            relay.cut()
            assert (below.recv(1), up.recv(1)) == (b"", b"")
        assert (relay.is_up, relay.cuts, relay.connections) == (False, cuts, 0)
        with pytest.raises(FileNotFoundError):
            dial(tmp_path / "link.sock")
        relay.mend()
        assert relay.is_up
    relay.cut()
    relay.cut()
    assert relay.cuts == 2  # nothing was connected any more
    assert not (tmp_path / "link.sock").exists()


def test_an_end_that_closes_closes_the_other(tmp_path: Path, above: socket.socket) -> None:
    relay = LinkRelay(tmp_path / "link.sock", tmp_path / "above.sock")
    below = dial(tmp_path / "link.sock")
    with closing(above.accept()[0]) as up:
        up.settimeout(DEADLINE_S)
        below.close()
        assert up.recv(1) == b""
    relay.cut()


def test_with_nobody_above_the_one_below_is_hung_up_on_and_may_dial_again(tmp_path: Path) -> None:
    relay = LinkRelay(tmp_path / "link.sock", tmp_path / "above.sock")
    for _ in range(2):
        with closing(dial(tmp_path / "link.sock")) as below:
            assert below.recv(1) == b""
    assert relay.connections == 0
    relay.cut()
