"""The handler of `handler = "http"`: call a function and wait for its reply."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.engine.encoding.encode import encode
from penstock.errors import Invalid
from penstock.failures.classify import judge
from penstock.failures.verdict import CLASSES, Charge, Verdict
from penstock.models import usage
from penstock.models.function_reply import STATUSES, Odd, read_failure, read_units
from penstock.models.handlers.job import Job
from penstock.models.handlers.protocols import Handler
from penstock.net.endpoint import Endpoint
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal
from penstock.security.secret import Secret
from penstock.security.signature import Signer, signed

# Several times the size limit of a result, because the reply may be written with spaces.
REPLY_BYTES = 4 * 1_048_576
# A little less than a job's timeout (2m by default), so that a function that hangs is reported as
# such and not as a slow job.
ANSWER_SECONDS = 108.0
_GOOD = range(200, 300)
_CLIENT_ERROR = range(400, 500)
# Client errors that are not about this job: a wrong key of ours, or "try later".
_NOT_THE_JOBS = (401, 408, 425, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    endpoint: Endpoint
    headers: Mapping[str, Secret] = field(default_factory=dict)
    signer: Signer | None = None
    answer_seconds: float = ANSWER_SECONDS


class FunctionFailed(ProviderError):  # noqa: N818
    """A failure with a known verdict: the function reported it, or refused this one job."""

    def __init__(self, message: str, verdict: Verdict, signal: Signal | None = None) -> None:
        super().__init__(message, signal or Signal(received=True, address=verdict.address))
        self.verdict = verdict


class NoAnswer(ProviderError):  # noqa: N818
    """The function's answer was not complete in time."""


def build(config: Http) -> Handler:
    async def http(job: Job, payload: dict[str, Any]) -> Any:
        token = secrets.token_urlsafe(24)
        # The same fields as for a dispatched job. Here the answer on this connection is the
        # callback.
        callback = {"callback_url": None, "token": token, "expires_at": None}
        async with (
            job.stage("calling", label="Waiting for the service"),
            called(config, config.signer, job, payload, callback) as answer,
        ):
            body = await answer.read(REPLY_BYTES)
            kind = answer.headers.get("content-type", "")
        return await _taken(job, config, _value(body, kind, config), token)

    return http


@asynccontextmanager
async def called(
    config: Http,
    signer: Signer | None,
    job: Job,
    payload: dict[str, Any],
    callback: Mapping[str, str | None],
) -> AsyncIterator[Any]:
    """Send a job to a function and yield its answer (net/transport.py).

    Raises the function's refusal, or NoAnswer if the answer is not complete in time.
    """
    # Imported here: the library takes a quarter of a second to load, and only workers need it.
    from penstock.net.transport import Transport

    fields = {
        "job_id": str(job.id),
        "kind": job.kind,
        "attempt": job.attempt,
        "payload": payload,
        **callback,
    }
    body = json.dumps(fields, ensure_ascii=False).encode()
    headers = {
        **{name: value.reveal() for name, value in config.headers.items()},
        **signed(signer, f"{job.id}.{job.attempt}", int(time.time()), body),
        "Idempotency-Key": str(job.id),
    }
    transport = await Transport.here()
    limit = asyncio.timeout(config.answer_seconds)
    try:
        async with limit, transport.post(config.endpoint, body, headers) as answer:
            if answer.status not in _GOOD:
                raise refused(await answer.refusal("the function"))
            yield answer
    except TimeoutError:
        if not limit.expired():
            raise
        address = config.endpoint.address
        raise NoAnswer(
            f"the function at {address} did not answer in {config.answer_seconds:g} s",
            Signal(exception="read_timeout", address=address),
        ) from None


def refused(error: ProviderError) -> ProviderError:
    """Return a refusal as the fault of this job and not of the queue.

    A function is written for these jobs: if it refuses one, the others may still succeed.
    """
    signal = error.signal
    if signal.status not in _CLIENT_ERROR or signal.status in _NOT_THE_JOBS:
        return error
    verdict = judge(signal)
    if verdict.charge is not Charge.FINAL:
        verdict = replace(
            CLASSES["invalid_request"],
            address=verdict.address,
            status=verdict.status,
            code=verdict.code,
        )
    return FunctionFailed(str(error), verdict, signal)


def _value(body: bytes | None, kind: str, config: Http) -> Any:
    """Read the reply as JSON, or as a text if it does not claim to be JSON."""
    if body is None:
        raise _bad(config, f"answered with more than {REPLY_BYTES} bytes")
    if not body.strip():
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        if "json" in kind:
            raise _bad(config, "claims to answer with JSON, but it is not valid JSON") from None
        try:
            value = body.decode()
        except UnicodeDecodeError:
            raise _bad(config, "answered with neither JSON nor text") from None
    try:
        encode(value, "result")
    except Invalid as error:
        raise _bad(config, f"sent an answer that cannot be stored: its {error.message}") from None
    return value


async def _taken(job: Job, config: Http, reply: Any, token: str) -> Any:
    """Return the result in a reply. A reply that is not in Penstock's form is itself the result.

    A null member counts as missing: many serializers write missing values as null.
    """
    if not isinstance(reply, dict):
        return reply
    about, status, given = (reply.get(name) for name in ("job_id", "status", "token"))
    if about is None or status not in STATUSES:
        return reply
    if about != str(job.id) or (given is not None and given != token):
        raise _bad(config, "answered for another job, or with another job's token")
    if used := usage.numbers(reply.get("usage")):
        await job.usage(**used)
    try:
        units = read_units(reply.get("units"))
    except Odd as odd:
        raise _bad(config, f"answered with {odd}") from None
    if units is not None:
        await job.charge(units=units)
    if status == "succeeded":
        return reply.get("result")
    if status == "progress":
        raise _bad(config, "answered with progress only: a waiting call needs the outcome")
    try:
        failure = read_failure(reply.get("error"))
    except Odd as odd:
        raise _bad(config, f"failed with {odd}") from None
    address = config.endpoint.address
    failed = FunctionFailed(
        failure.message or f"the function at {address} failed and gave no reason",
        replace(failure.verdict, address=address),
    )
    failed.public = failure.public
    raise failed


def _bad(config: Http, what: str) -> ProviderError:
    address = config.endpoint.address
    signal = Signal(status=200, exception="bad_json", received=True, address=address)
    return ProviderError(f"the function at {address} {what}", signal)
