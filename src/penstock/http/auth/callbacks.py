"""Callbacks: parse what an outside function reports about a job, and authenticate the function.

The body of a callback is untrusted, so it is validated strictly.

The token of the attempt identifies the job and the attempt. A signature, or the secret that a kind
shares with its function, only identifies the caller, so the body must name the attempt. A signed
body must name the job, too: otherwise a body that was signed for one job could be sent to the
address of another.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from uuid import UUID

from starlette.requests import Request

from penstock.engine.encoding.encode import encode
from penstock.engine.jobs.attempts import columns
from penstock.engine.jobs.callbacks import Item
from penstock.errors import Invalid, Unauthorized
from penstock.failures.outcome import charged, clean
from penstock.http.backend import Backend
from penstock.http.routing import refuse_crowded
from penstock.models import usage
from penstock.models.function_reply import STATUSES, Odd, read_failure, read_units
from penstock.security import callback_token, signature
from penstock.security.roots import Roots

# The limit of SQL for results. Deeper text would exhaust a parser before SQL checks it.
DEEPEST = 64
STAGE_MAX = 200
_ATTEMPT_MAX = 2**31 - 1
_PROGRESS = ("done", "total", "partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadItem:
    """One item of a callback, parsed as far as possible before its sender is known."""

    job_id: UUID | None
    shown: str | None
    """The job id as the item spells it."""
    token: str | None = None
    attempt: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What the item reports, by the names of Item."""
    odd: str | None = None
    """Why the item is invalid."""

    def item(self, job_id: UUID, attempt: int, token: str) -> Item:
        return Item(job_id=job_id, attempt=attempt, token=token, **self.columns)


def parse(body: bytes | bytearray) -> Any:
    """Parse the body as JSON; ValueError if it is not JSON or is nested too deep.

    The sender is not authenticated yet: the proof may be in the body.
    """
    refuse_crowded(body)
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_item(raw: Any) -> ReadItem:
    """Parse one item. It never raises: `odd` of an invalid item says why."""
    if not isinstance(raw, dict):
        return ReadItem(job_id=None, shown=None, odd="an item must be an object")
    job_id, shown = _job(raw.get("job_id"))
    token, attempt = raw.get("token"), raw.get("attempt")
    if not isinstance(token, str):
        token = None
    if type(attempt) is not int or not 1 <= attempt <= _ATTEMPT_MAX:
        attempt = None
    item = ReadItem(job_id=job_id, shown=shown, token=token, attempt=attempt)
    try:
        return replace(item, columns=_columns(raw))
    except Odd as error:
        return replace(item, odd=str(error))
    except Invalid as error:
        return replace(item, odd=error.message)


def _job(value: Any) -> tuple[UUID | None, str | None]:
    if not isinstance(value, str) or len(value) > 36:  # noqa: PLR2004  # of a UUID
        return None, None
    try:
        job_id = UUID(value)
    except ValueError:
        return None, value if value.isprintable() and value.isascii() else None
    return job_id, str(job_id)


def _columns(raw: dict[str, Any]) -> dict[str, Any]:
    status = raw.get("status")
    if status not in STATUSES:
        raise Odd(f"status must be one of {', '.join(STATUSES)}")
    values: dict[str, Any] = {"outcome": status, "units": read_units(raw.get("units"))}
    if status == "progress":
        stage, progress = _stage(raw.get("stage")), _progress(raw.get("progress"))
        return {**values, "stage": stage, "progress": progress}
    if status == "failed":
        failure = read_failure(raw.get("error"), lenient=True)
        message = clean(failure.message or "the function failed and gave no reason")
        row = columns(charged(failure.verdict, message, public=failure.public))
        error = encode(row.error, "error")
        values |= {
            "outcome": row.outcome,
            "error": error,
            "delay": row.delay,
            "bearing": row.bearing,
        }
    elif raw.get("result") is not None:
        values["result"] = _encoded(raw["result"], "result")
    if used := usage.numbers(raw.get("usage")):
        values["usage"] = encode(used, "usage")
    return values


def _stage(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > STAGE_MAX:
        raise Odd(f"stage must be a text of at most {STAGE_MAX} characters")
    encode(value, "stage")
    return value


def _progress(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - set(_PROGRESS):
        raise Odd("progress must be an object of done, total and partial")
    for name in ("done", "total"):
        number = value.get(name)
        if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
            raise Odd(f"progress.{name} must be a number")
    return _encoded({name: value.get(name) for name in _PROGRESS}, "progress")


def _encoded(value: Any, name: str) -> str:
    if _is_deeper(value, DEEPEST):
        raise Odd(f"{name} is nested deeper than {DEEPEST} levels")
    return encode(value, name)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether the value is nested deeper than this many levels."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if levels == 1:
        return bool(parts)
    return any(_is_deeper(part, levels - 1) for part in parts if isinstance(part, dict | list))


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


# How many job ids and tokens from the beginning of a body are tried.
_MOST_TRIED = 4
_JOB_ID = re.compile(
    rb'"job_id"\s{0,9}:\s{0,9}"([0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12})"'
)
_TOKEN = re.compile(rb'"token"\s{0,9}:\s{0,9}"([0-9]{1,9}\.[A-Za-z0-9_-]{43})"')


class Caller:
    """The sender of a callback about one job, and what it has proved."""

    def __init__(self, backend: Backend, job_id: UUID) -> None:
        self._backend = backend
        self._job_id = job_id
        self._attempt: int | None = None
        self._trusted = self._late = False
        self.signature: bytes | None = None
        self.why: str | None = None
        """Why the callback is refused."""

    @property
    def known(self) -> bool:
        return self._attempt is not None or self._trusted

    async def read_bearer(self, request: Request, credential: str) -> None:
        """Check the headers before the body is read, for a token or the kind's shared secret."""
        self._attempt = callback_token.attempt_of(self._backend.roots, self._job_id, credential)
        if self._attempt is None and credential:
            chosen = self._chosen(await self._signers())
            self._trusted = bool(chosen) and self._backend.auth.try_secret(
                request, lambda: any(signer.is_secret(credential) for signer in chosen)
            )

    async def read_signature(self, request: Request, body: bytes) -> None:
        """Check the signature over the body."""
        if self._attempt is not None or "webhook-signature" not in request.headers:
            return
        signers = await self._signers()

        def matches() -> bool:
            now = time.time()
            for signer in signers:
                self.signature = self.signature or signer.match(request.headers, body, now)
            return self.signature is not None

        # Our own secret is random and cannot be guessed, so only chosen ones are counted.
        chosen = self._chosen(signers)
        fits = self._backend.auth.try_secret(request, matches) if chosen else matches()
        self._trusted = self._trusted or fits
        self._late = not self._trusted and _is_late(signers, request.headers, body)

    def _chosen(self, signers: Sequence[signature.Signer]) -> list[signature.Signer]:
        """The signers whose secret a person chose for a kind: it might be guessed."""
        shared = self._backend.callback_signers.values()
        return [signer for signer in signers if signer in shared]

    async def _signers(self) -> Sequence[signature.Signer]:
        """The signer of the job's kind, or else our own; for an unknown job, all signers."""
        known = self._backend.callback_signers
        ours = signature.of_functions(self._backend.roots)
        if not known:
            return (ours,)
        kind = (await self._backend.engine.callbacks.kinds([self._job_id])).get(self._job_id)
        if kind is None:
            return (*known.values(), ours)
        return (known.get(kind.kind, ours),)

    def items(self, item: ReadItem, credential: str) -> list[Item] | None:
        """Return the candidates to resolve; the first match counts. None: it is refused."""
        roots, job_id = self._backend.roots, self._job_id
        attempt, tokens = self._attempt, [credential]
        if item.token is not None:
            attempt, tokens = callback_token.attempt_of(roots, job_id, item.token), [item.token]
        if attempt is None and not self._trusted:
            raise unknown_caller(late=self._late)
        named = item.job_id is not None or self.signature is None
        if attempt is None and item.token is None and item.attempt is not None and named:
            # The attempt may have begun before the secret was rotated.
            attempt = item.attempt
            tokens = callback_token.all_of(roots, job_id, attempt)
        if attempt is None:
            missing = "job_id" if item.attempt is not None else "attempt"
            self.why = "its token is of another attempt" if item.token else f"{missing} is missing"
            return None
        if item.odd is not None:
            return None
        return [item.item(job_id, attempt, token) for token in tokens]


def _is_late(signers: Sequence[signature.Signer], headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the signature would be valid at the time that the message names."""
    timestamp = headers.get("webhook-timestamp", "")
    return timestamp.isdecimal() and any(
        signer.match(headers, body, float(timestamp)) for signer in signers
    )


def holds_token(roots: Roots, part: bytes, job_id: UUID | None = None) -> bool:
    """Whether the beginning of a body has the token of an attempt of this job, or of any job."""
    named = [UUID(each[1].decode()) for each in islice(_JOB_ID.finditer(part), _MOST_TRIED)]
    tokens = [each[1].decode() for each in islice(_TOKEN.finditer(part), _MOST_TRIED)]
    return any(
        callback_token.attempt_of(roots, job, token) is not None
        for job in (named if job_id is None else [job_id])
        for token in tokens
    )


def only_item(caller: Caller, body: bytes) -> ReadItem:
    """Parse the only item of a body."""
    try:
        raw = parse(body)
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
            hint="POST /v1/callbacks takes an array of several results.",
        )
    return read_item(raw)


def unknown_caller(*, late: bool = False) -> Unauthorized:
    """The refusal of an unknown caller; `late`: its signature is valid, but too old or too new."""
    if late:
        return Unauthorized(
            "the signature's timestamp is too old, or in the future",
            code="unauthorized",
            hint="Sign each message when it is sent, and set both clocks: they may"
            f" differ by {signature.TOLERANCE_SECONDS} s.",
        )
    return Unauthorized(
        "the callback has no valid token or signature",
        code="unauthorized",
        hint="Send the token of the attempt, as bearer or in each item; or sign the body.",
    )
