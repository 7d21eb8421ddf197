"""Who calls back about a job, and what that proves.

The token of the start says it all. A signature, or the secret that a kind shares with its function,
says who calls, and the body then which start it is about: of which job, too, where it is signed, or
what was signed about one job could be sent to another's address.
"""

import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from fastapi import Request

from penstock.api import callback_items
from penstock.api.backend import Backend
from penstock.api.callback_items import Said
from penstock.engine.callbacks import Item
from penstock.errors import Invalid, Unauthorized
from penstock.providers import callback_token, signature


class Caller:
    """Who calls back about one job, and what that proves."""

    def __init__(self, behind: Backend, job_id: UUID) -> None:
        self._behind = behind
        self._job_id = job_id
        self._attempt: int | None = None
        self._trusted = self._late = False
        self.signature: bytes | None = None
        self.why: str | None = None
        """Why what it says cannot be taken."""

    @property
    def known(self) -> bool:
        return self._attempt is not None or self._trusted

    async def look(self, request: Request, given: str, body: bytes) -> None:
        """At what comes before the body is read: its bearer, its signature."""
        roots = self._behind.roots
        self._attempt = callback_token.attempt_of(roots, self._job_id, given)
        signed = "webhook-signature" in request.headers
        if self._attempt is not None or not (signed or given):
            return
        signers = await self._signers()
        shared = self._behind.callback_signers.values()
        self._trusted = bool(given) and any(
            one in shared and one.is_secret(given) for one in signers
        )
        if signed:
            now = time.time()
            for one in signers:
                self.signature = self.signature or one.match(request.headers, body, now)
            self._trusted = self._trusted or self.signature is not None
            self._late = not self._trusted and _is_late(signers, request.headers, body)

    async def _signers(self) -> Sequence[signature.Signer]:
        """By the secret of the job's kind, else ours; of a job that is unknown, by any of them."""
        known = self._behind.callback_signers
        ours = signature.of_functions(self._behind.roots)
        if not known:
            return (ours,)
        kind = (await self._behind.engine.callbacks.kinds([self._job_id])).get(self._job_id)
        if kind is None:
            return (*known.values(), ours)
        return (known.get(kind.kind, ours),)

    def items(self, said: Said, given: str) -> list[Item] | None:
        """What is to be resolved: the first that fits. None: it cannot be taken."""
        roots, job_id = self._behind.roots, self._job_id
        attempt, tokens = self._attempt, [given]
        if said.token is not None:
            attempt, tokens = callback_token.attempt_of(roots, job_id, said.token), [said.token]
        if attempt is None and not self._trusted:
            raise unknown_caller(late=self._late)
        named = said.job_id is not None or self.signature is None
        if attempt is None and said.token is None and said.attempt is not None and named:
            # It may be older than an exchange of the secret.
            attempt = said.attempt
            tokens = callback_token.all_of(roots, job_id, attempt)
        if attempt is None:
            missing = "job_id" if said.attempt is not None else "attempt"
            self.why = "its token is of another start" if said.token else f"{missing} is missing"
            return None
        if said.odd is not None:
            return None
        return [said.item(job_id, attempt, token) for token in tokens]


def _is_late(signers: Sequence[signature.Signer], headers: Mapping[str, str], body: bytes) -> bool:
    """Whether all would be well at the moment that the message names."""
    said = headers.get("webhook-timestamp", "")
    return said.isdecimal() and any(one.match(headers, body, float(said)) for one in signers)


def only_item(caller: Caller, body: bytes) -> Said:
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
