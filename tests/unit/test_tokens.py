"""Tokens of jobs: what is said where one is refused, and the least and greatest that can be granted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inaproto.core.rendezvous.tokens import NAME_BYTES_MAX, Grant, Refusal, TokenIssuer
from inaproto.errors import LocalMisuse

ISSUER, OTHER = TokenIssuer([b"s" * 32]), TokenIssuer([b"t" * 32])
LEAST = Grant("j", 1, 0, 1, 0, 0)
GREATEST = Grant("j" * NAME_BYTES_MAX, (1 << 16) - 1, 0, (1 << 16) - 1, (1 << 64) - 1, (1 << 64) - 1)
RUN = Grant("train", 8, 2, 4, 1000, 7, "h0")
NOBODY_S = "nobody of this deployment has made it, or it was changed"
CUT = "it is no token, or it was cut"


@pytest.mark.parametrize(
    ("spoil", "asked", "code", "reason"),
    [
        (
            lambda token: "key",
            {},
            "token_invalid",
            "there is none: this deployment wants a job's token as its key",
        ),
        (lambda token: OTHER.issue(RUN), {}, "token_invalid", NOBODY_S),
        (lambda token: token[:-1], {}, "token_invalid", CUT),
        (lambda token: token[:20], {}, "token_invalid", CUT),
        (lambda token: token + "*", {}, "token_invalid", CUT),
        (lambda token: token[:9] + "*" + token[9:], {}, "token_invalid", CUT),
        (str, {"size": 9}, "token_job", "it is for another job than 'train' of 9 ranks"),
        (str, {"job": "other"}, "token_job", "it is for another job than 'other' of 8 ranks"),
        (str, {"rank": 1}, "token_rank", "it is for ranks 2 to 3, not 1"),
        (str, {"rank": 4}, "token_rank", "it is for ranks 2 to 3, not 4"),
        (str, {"host": "h1"}, "token_host", "it is for another host than 'h1'"),
        (str, {"now_s": 1000}, "token_expired", "it ran out 0 s ago"),
        (str, {"now_s": 1012.4}, "token_expired", "it ran out 12 s ago"),
    ],
)
def test_why_a_token_is_refused(
    spoil: Callable[[str], str], asked: dict[str, object], code: str, reason: str
) -> None:
    right = {"job": "train", "rank": 2, "size": 8, "host": "h0", "now_s": 999.9}
    token = ISSUER.issue(RUN)
    assert ISSUER.check(spoil(token), **{**right, **asked}) == Refusal(code, reason)  # type: ignore[arg-type]
    assert ISSUER.check(token, **right) == RUN  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grant", "changes", "words"),
    [
        (LEAST, {"job": ""}, "job and host take 0 bytes, 1 to 128 are possible"),
        (GREATEST, {"host": "h"}, "job and host take 129 bytes"),
        (LEAST, {"first": -1}, "no ranks -1 to 1 of 1"),
        (LEAST, {"first": 1}, "no ranks 1 to 1 of 1"),
        (LEAST, {"until_rank": 2}, "no ranks 0 to 2 of 1"),
        (GREATEST, {"size": 1 << 16}, "no ranks 0 to 65535 of 65536"),
        (LEAST, {"expires_s": -1}, "expiry and nonce are numbers of 64 bits"),
        (LEAST, {"nonce": -1}, "expiry and nonce are numbers of 64 bits"),
        (GREATEST, {"expires_s": 1 << 64}, "expiry and nonce are numbers of 64 bits"),
        (GREATEST, {"nonce": 1 << 64}, "expiry and nonce are numbers of 64 bits"),
    ],
)
def test_what_can_be_granted_has_bounds(grant: Grant, changes: dict[str, object], words: str) -> None:
    assert replace(grant) == grant
    with pytest.raises(LocalMisuse, match=f"token: {words}"):
        replace(grant, **changes)  # type: ignore[arg-type]


def test_a_secret_has_its_least_length_and_there_is_one() -> None:
    for secrets in ([], [b"s" * 31], [b"s" * 32, b"t" * 31]):
        with pytest.raises(LocalMisuse, match="a secret has at least 32 bytes"):
            TokenIssuer(secrets)
    rotated = TokenIssuer([b"t" * 32, b"s" * 32])
    assert rotated.check(ISSUER.issue(RUN), job="train", rank=3, size=8, host="h0", now_s=0) == RUN
    assert RUN.job_key == "run 0000000000000007 of 8"
