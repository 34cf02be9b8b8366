"""The token of each job: issued when it is taken in, told to who submitted it, its hash to the job's hosts.

Nothing of a token is stored but its hash and what it grants: it can be issued again, the same, to who
repeats the submission. So the secret decides, which is the deployment's, or one that lies in the store.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, replace
from typing import Final

from inaproto.core.rendezvous.tokens import SECRET_BYTES_MIN, Grant, TokenIssuer, hash_of
from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.desired import Job

RECORD: Final = "secret/job_tokens"
"""Record of the store with the secret, where the deployment has no ``job_secret``."""
DAY_S: Final = 86400


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES_MIN)


def new_submission() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """``days``: a token is good for so long after its job was submitted."""

    issuer: TokenIssuer
    days: int

    def admitted(self, job: Job) -> Job:
        """The job with a token. Raises ``LocalMisuse`` for a job for which there can be none."""
        expires_s = int(job.submitted_at) + self.days * DAY_S
        found = replace(job, nonce=secrets.randbits(64), expires_s=expires_s)
        return replace(found, token_hash=hash_of(self._issue(found)))

    def of(self, job: Job) -> str:
        """Raises ``LocalMisuse`` when it was issued with another secret."""
        token = self._issue(job)
        if not hmac.compare_digest(hash_of(token), job.token_hash):
            raise LocalMisuse("its token was made with another job_secret, and cannot be told again")
        return token

    def _issue(self, job: Job) -> str:
        size = job.spec.hosts * job.spec.ranks_per_host
        return self.issuer.issue(Grant(job.spec.name, size, 0, size, job.expires_s, job.nonce))
