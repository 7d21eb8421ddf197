"""Who calls back about a job, and what that proves.

The token of the start says it all. A signature, or the secret that a kind shares with its function,
says who calls, and the body then which start it is about: of which job, too, where it is signed, or
what was signed about one job could be sent to another's address.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from uuid import UUID

from starlette.requests import Request

from penstock.engine.jobs.callbacks import Item
from penstock.errors import Invalid, Unauthorized
from penstock.http.backend import Backend
from penstock.http.schemas import callback_items
from penstock.http.schemas.callback_items import ReadItem
from penstock.security import callback_token, signature
from penstock.security.roots import Roots

# So many jobs and tokens are tried in the beginning of a body.
_MOST_TRIED = 4
_JOB_ID = re.compile(rb'"job_id"\s{0,9}:\s{0,9}"([0-9A-Fa-f-]{36})"')
_TOKEN = re.compile(rb'"token"\s{0,9}:\s{0,9}"([0-9]{1,9}\.[A-Za-z0-9_-]{43})"')


class Caller:
    """Who calls back about one job, and what that proves."""

    def __init__(self, backend: Backend, job_id: UUID) -> None:
        self._backend = backend
        self._job_id = job_id
        self._attempt: int | None = None
        self._trusted = self._late = False
        self.signature: bytes | None = None
        self.why: str | None = None
        """Why what it says cannot be taken."""

    @property
    def known(self) -> bool:
        return self._attempt is not None or self._trusted

    async def read_bearer(self, request: Request, given: str) -> None:
        """What the headers prove before the body is read: a token, or the kind's shared secret."""
        self._attempt = callback_token.attempt_of(self._backend.roots, self._job_id, given)
        if self._attempt is None and given:
            chosen = self._chosen(await self._signers())
            self._trusted = bool(chosen) and self._backend.auth.try_secret(
                request, lambda: any(signer.is_secret(given) for signer in chosen)
            )

    async def read_signature(self, request: Request, body: bytes) -> None:
        """What a signature over the body proves."""
        if self._attempt is not None or "webhook-signature" not in request.headers:
            return
        signers = await self._signers()

        def matches() -> bool:
            now = time.time()
            for signer in signers:
                self.signature = self.signature or signer.match(request.headers, body, now)
            return self.signature is not None

        # Ours is random, and nobody guesses it.
        chosen = self._chosen(signers)
        fits = self._backend.auth.try_secret(request, matches) if chosen else matches()
        self._trusted = self._trusted or fits
        self._late = not self._trusted and _is_late(signers, request.headers, body)

    def _chosen(self, signers: Sequence[signature.Signer]) -> list[signature.Signer]:
        """Those whose secret somebody chose for a kind, so that it might be guessed."""
        shared = self._backend.callback_signers.values()
        return [signer for signer in signers if signer in shared]

    async def _signers(self) -> Sequence[signature.Signer]:
        """By the secret of the job's kind, else ours; of a job that is unknown, by any of them."""
        known = self._backend.callback_signers
        ours = signature.of_functions(self._backend.roots)
        if not known:
            return (ours,)
        kind = (await self._backend.engine.callbacks.kinds([self._job_id])).get(self._job_id)
        if kind is None:
            return (*known.values(), ours)
        return (known.get(kind.kind, ours),)

    def items(self, item: ReadItem, given: str) -> list[Item] | None:
        """What is to be resolved: the first that fits. None: it cannot be taken."""
        roots, job_id = self._backend.roots, self._job_id
        attempt, tokens = self._attempt, [given]
        if item.token is not None:
            attempt, tokens = callback_token.attempt_of(roots, job_id, item.token), [item.token]
        if attempt is None and not self._trusted:
            raise unknown_caller(late=self._late)
        named = item.job_id is not None or self.signature is None
        if attempt is None and item.token is None and item.attempt is not None and named:
            # It may be older than an exchange of the secret.
            attempt = item.attempt
            tokens = callback_token.all_of(roots, job_id, attempt)
        if attempt is None:
            missing = "job_id" if item.attempt is not None else "attempt"
            self.why = "its token is of another start" if item.token else f"{missing} is missing"
            return None
        if item.odd is not None:
            return None
        return [item.item(job_id, attempt, token) for token in tokens]


def _is_late(signers: Sequence[signature.Signer], headers: Mapping[str, str], body: bytes) -> bool:
    """Whether all would be well at the moment that the message names."""
    timestamp = headers.get("webhook-timestamp", "")
    return timestamp.isdecimal() and any(
        signer.match(headers, body, float(timestamp)) for signer in signers
    )


def holds_token(roots: Roots, part: bytes, job_id: UUID | None = None) -> bool:
    """Whether the beginning of a body holds the token of an attempt of this job, or of any job."""
    jobs = [job_id] if job_id is not None else list(_jobs_in(part))
    tokens = [
        found[1].decode()
        for found, _ in zip(_TOKEN.finditer(part), range(_MOST_TRIED), strict=False)
    ]
    return any(
        callback_token.attempt_of(roots, job, token) is not None for job in jobs for token in tokens
    )


def _jobs_in(part: bytes) -> Iterator[UUID]:
    for found in islice(_JOB_ID.finditer(part), _MOST_TRIED):
        with suppress(ValueError):
            yield UUID(found[1].decode())


def only_item(caller: Caller, body: bytes) -> ReadItem:
    """The one item of a body."""
    try:
        raw = callback_items.parse(body)
    except ValueError as error:
        if not caller.known:
            raise unknown_caller() from None
        raise Invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    if isinstance(raw, list) and len(raw) == 1:
        raw = raw[0]
    if not isinstance(raw, dict):
        if not caller.known:
            raise unknown_caller()
        raise Invalid(
            "the body must be one result, or an array with one",
            code="invalid_callback",
            field="body",
            hint="POST /v1/callbacks takes an array of many.",
        )
    return callback_items.read(raw)


def unknown_caller(*, late: bool = False) -> Unauthorized:
    """`late`: its signature would have been good at the moment that it names."""
    if late:
        return Unauthorized(
            "its signature was made too long ago, or in the future",
            code="unauthorized",
            hint="Sign each message anew, and set both clocks: they may be"
            f" {signature.TOLERANCE_SECONDS} s apart.",
        )
    return Unauthorized(
        "nothing here proves whose callback it is",
        code="unauthorized",
        hint="Send the token of the start: as bearer, or in each item; or sign the body.",
    )
