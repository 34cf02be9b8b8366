"""Job tokens: forged, stolen, of another job, rank, host or time; and through a switch that wants them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import inaproto
from inaproto.client.channel import Channel
from inaproto.core.rendezvous.rules import job_name
from inaproto.core.rendezvous.tokens import Grant, Refusal, TokenIssuer, hash_of
from inaproto.errors import ConfigError, JobError, JoinRefused, LocalMisuse
from inaproto.wire.control_messages import Error, Ready, Ring, Start
from tests.clusters.loopback import open_cluster
from tests.clusters.switch import ControlHost, running_switch
from tests.unit.rendezvous_members import member

SECRET = bytes(range(32))
ISSUER = TokenIssuer([SECRET])
GRANT = Grant("train", 4, 0, 2, expires_s=1000, nonce=7, host="h0")


def check(token: str, issuer: TokenIssuer = ISSUER, **asked: Any) -> Grant | Refusal:
    what: dict[str, Any] = {"job": "train", "rank": 1, "size": 4, "host": "h0", "now_s": 999.0} | asked
    return issuer.check(token, **what)


def test_a_token_grants_what_it_was_made_for() -> None:
    assert check(ISSUER.issue(GRANT)) == GRANT
    assert check(ISSUER.issue(replace(GRANT, host="")), host="h9") == replace(GRANT, host="")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"job": "other"}, "token_job"),
        ({"size": 8}, "token_job"),
        ({"rank": 2}, "token_rank"),
        ({"host": "h1"}, "token_host"),
        ({"now_s": 1000.0}, "token_expired"),
    ],
)
def test_and_nothing_else(asked: dict[str, Any], code: str) -> None:
    found = check(ISSUER.issue(GRANT), **asked)
    assert isinstance(found, Refusal)
    assert found.code == code


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1],
        lambda token: token + "=",
        lambda token: token.replace("ina1.", "ina2."),
        lambda token: token.upper(),
        lambda token: "",
        lambda token: "ina1.",
        lambda token: "secret",
        lambda token: token + "AAAA",
        lambda token: token.replace("ina1.", "ina1. "),
        lambda token: "ina1." + 250 * "\u00e9",
    ],
)
def test_no_token(spoil: Callable[[str], str]) -> None:
    found = check(spoil(ISSUER.issue(GRANT)))
    assert isinstance(found, Refusal)
    assert found.code == "token_invalid"


@pytest.mark.parametrize("job", ["train#0/2", "train#1/2"])
def test_parallel_rings_of_a_job_are_that_job(job: str) -> None:
    assert check(ISSUER.issue(GRANT), job=job) == GRANT
    found = check(ISSUER.issue(replace(GRANT, job="other")), job=job)
    assert isinstance(found, Refusal)


def test_a_job_that_goes_on_without_a_lost_rank_is_that_job() -> None:
    """Its ranks have other numbers, in fewer; it is no smaller job that anybody could make."""
    token = ISSUER.issue(GRANT)
    assert check(token, job="train~1", rank=2, size=3) == GRANT
    assert check(token, job="train#0/2~3", rank=2, size=3) == GRANT
    for job, size in (("train", 3), ("train~1", 5), ("train~x", 3)):
        found = check(token, job=job, size=size)
        assert isinstance(found, Refusal)
        assert found.code == "token_job"


def test_a_hash_says_which_token_it_is_of() -> None:
    assert hash_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert hash_of(ISSUER.issue(GRANT)) != hash_of(ISSUER.issue(replace(GRANT, nonce=8)))


@given(st.integers(0), st.integers(0, 7))
def test_no_bit_of_a_token_can_be_changed(position: int, bit: int) -> None:
    token = ISSUER.issue(GRANT).removeprefix("ina1.")
    data = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    data[position % len(data)] ^= 1 << bit
    changed = "ina1." + base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert isinstance(check(changed), Refusal)


@given(st.text(max_size=60))
def test_no_text_is_a_token(text: str) -> None:
    for token in (text, "ina1." + text):
        assert isinstance(check(token), Refusal)


def test_another_deployment_s_token_and_a_rotated_secret() -> None:
    older = TokenIssuer([bytes(32)])
    token = older.issue(GRANT)
    assert isinstance(check(token), Refusal)
    assert check(token, TokenIssuer([SECRET, bytes(32)])) == GRANT


@given(
    st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()),
    st.text(max_size=20).filter(lambda text: text.isprintable()),
    st.integers(0, (1 << 64) - 1),
)
def test_every_grant_comes_back_and_fits_where_a_key_does(job: str, host: str, nonce: int) -> None:
    if len(job.encode()) + len(host.encode()) > 128:
        with pytest.raises(LocalMisuse):
            Grant(job, 65535, 0, 65535, expires_s=(1 << 64) - 1, nonce=nonce, host=host)
        return
    grant = Grant(job, 65535, 0, 65535, expires_s=(1 << 64) - 1, nonce=nonce, host=host)
    token = ISSUER.issue(grant)
    assert len(token.encode()) <= 256
    found = check(token, job=job, size=65535, host=host)
    if job_name(job).job == job:
        assert found == grant
    else:  # a ring's or a generation's name, such as ~1: it is part of another job
        assert isinstance(found, Refusal)


def test_job_and_host_are_not_run_together() -> None:
    one = ISSUER.issue(Grant("ab", 1, 0, 1, expires_s=9, nonce=1, host="c"))
    found = check(one, job="a", host="bc", size=1, rank=0, now_s=1)
    assert isinstance(found, Refusal)


@pytest.mark.parametrize(
    "grant",
    [
        lambda: replace(GRANT, job=""),
        lambda: replace(GRANT, first=2),
        lambda: replace(GRANT, until_rank=5),
        lambda: replace(GRANT, nonce=1 << 64),
        lambda: replace(GRANT, expires_s=-1),
        lambda: TokenIssuer([]),
        lambda: TokenIssuer([bytes(31)]),
    ],
)
def test_what_cannot_be_granted(grant: Callable[[], object]) -> None:
    with pytest.raises(LocalMisuse):
        grant()


def test_a_secret_is_not_shown() -> None:
    assert "\\x01" not in repr(ISSUER)


# --- through a switch


def secret_file(directory: Path) -> Path:
    file = directory / "job.secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    return file


FAR = 1 << 40


def token(nonce: int = 1, **changes: Any) -> str:
    grant = Grant("train", 2, 0, 2, expires_s=FAR, nonce=nonce)
    return ISSUER.issue(replace(grant, **changes))


async def test_ranks_with_tokens_of_their_own_make_one_job(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir / "run", job_secret=secret_file(runtime_dir)) as switch:
        hosts = [await switch.host(number) for number in range(2)]
        for rank, host in enumerate(hosts):
            own = token(first=rank, until_rank=rank + 1, host=f"h{rank}")
            await host.stream.send(replace(member(rank, size=2), key=own))
        for rank, host in enumerate(hosts):
            await host.expect(Ring)
            await host.stream.send(Ready(job="train", rank=rank))
        for host in hosts:
            await host.expect(Start)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("secret", "wants a job's token as its key"),
        (TokenIssuer([bytes(32)]).issue(GRANT), "nobody of this deployment has made it"),
        (token(job="other"), "for another job than 'train'"),
        (token(first=0, until_rank=1), "for ranks 0 to 0, not 1"),
        (token(host="h7"), "for another host than 'h1'"),
        (token(expires_s=1), "it ran out"),
    ],
)
async def test_a_rank_without_the_right_one_is_refused_and_may_try_again(
    runtime_dir: Path, key: str, words: str
) -> None:
    async with running_switch(runtime_dir / "run", job_secret=secret_file(runtime_dir)) as switch:
        host = await switch.host(1)
        await host.stream.send(replace(member(1, size=2), key=key))
        await refused(host, words)
        await host.stream.send(replace(member(1, size=2), key=token()))
        other = await switch.host(0)
        await other.stream.send(replace(member(0, size=2), key=token()))
        await host.expect(Ring)


async def test_a_token_of_an_earlier_run_does_not_join_a_later_one(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir / "run", job_secret=secret_file(runtime_dir)) as switch:
        hosts = [await switch.host(number) for number in range(2)]
        await hosts[0].stream.send(replace(member(0, size=2), key=token(nonce=2)))
        await hosts[1].stream.send(replace(member(1, size=2), key=token(nonce=1)))
        await refused(hosts[1], "wrong key")


async def refused(host: ControlHost, words: str) -> None:
    answer = await host.expect(Error)
    assert isinstance(answer, Error)
    assert answer.code == JoinRefused.code
    assert words in answer.message


async def test_a_secret_that_others_can_read_or_is_short_is_not_used(runtime_dir: Path) -> None:
    file = secret_file(runtime_dir)
    for mode, secret, words in ((0o644, SECRET, "mode 0644"), (0o600, b"short", "at least 32 bytes")):
        file.chmod(mode)
        file.write_bytes(secret)
        with pytest.raises(BaseExceptionGroup) as caught:
            async with running_switch(runtime_dir / "run", job_secret=file):
                raise AssertionError("it started")
        assert caught.group_contains(ConfigError, match=words)


async def test_a_job_shrinks_by_its_token(runtime_dir: Path) -> None:
    """What goes on of it has another name, other ranks and the same token."""
    shown = token(until_rank=3, size=3)
    sums: list[float] = []

    async def go_on(comm: inaproto.Communicator) -> None:
        with contextlib.suppress(JobError):
            while True:
                await comm.all_reduce(np.ones(4, np.float32))
        async with await comm.shrink() as left:
            sums.append(float((await left.all_reduce(np.ones(4, np.float32)))[0]))

    async with open_cluster(runtime_dir, 0, switch=False) as cluster:
        await cluster.start_switch(job_secret=secret_file(runtime_dir))
        for _ in range(3):
            await cluster.start_host()
        *comms, lost = await cluster.job("train", 3, key=shown, elastic=True)
        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                for comm in comms:
                    nursery.start_soon(go_on, comm)
                assert isinstance(lost.channel, Channel)
                lost.channel.close()
    assert sums == [2.0, 2.0]
