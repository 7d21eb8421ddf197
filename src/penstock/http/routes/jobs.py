"""Jobs over HTTP: submit, read, list, cancel, retry; and the answers with a job.

`Prefer: wait=30` (RFC 7240): the answer is sent when the job has finished, or after this time.
For an unfinished job, `Retry-After` says when to ask again; the `ETag` says whether it has changed.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.jobs.jobs import NewJob
from penstock.engine.queries.json_texts import Text, naming_known
from penstock.engine.queries.lists import JobFilter
from penstock.engine.states import FINISHED, JobStatus
from penstock.errors import NotAllowed, Refused
from penstock.http.auth.caller import Canceller, Principal, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.middleware.limits import limits
from penstock.http.routing import HEADER, JSON, Body, Routes
from penstock.http.schemas import answers, cursors
from penstock.http.schemas.cursors import Cursor, Limit
from penstock.http.schemas.forms import LENGTHS, PLAIN, SubmitJob
from penstock.net.public_addresses import refuse_private

routes = Routes("jobs")

# An account's key may not set these: the operator decides them.
_RESERVED = ("account", "price", "priority", "max_attempts", "timeout_seconds")

# A running job may finish at any moment; a queued one starts after its ETA.
RETRY_SECONDS = 2
LONGEST_RETRY_SECONDS = 30
LONGEST_WAIT_SECONDS = 30
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})(?=$|[,;\s])", re.IGNORECASE)

Prefer = Annotated[
    str | None,
    HEADER,
    Field(description="`wait=10`: answer when the job has finished, or after 10 s; at most 30 s."),
]


@routes.add(
    "POST",
    "/v1/jobs",
    status=201,
    summary="Submit a job",
    answer=answers.SubmittedJob,
    about="Accepted",
    also={200: "The live job with the same dedupe key"},
    refuses=(402, 404, 409),
)
async def submit(  # noqa: PLR0913, PLR0917  # one per parameter of the contract
    request: Request,
    principal: Submitter,
    backend: Backend,
    form: Annotated[SubmitJob, Body(code="invalid_job")],
    idempotency_key: Annotated[
        str | None,
        HEADER,
        Field(
            alias="idempotency-key",
            description="A repetition with the same key returns the job of the first request.",
        ),
    ] = None,
    prefer: Prefer = None,
) -> Response:
    with naming_location():
        job, is_known = read_form(backend, principal, form)
        if job.webhook_url is not None:
            await refuse_private(job.webhook_url, allow_private=backend.settings.allow_private)
        await backend.engine.uploads.refuse_foreign(job.kind, job.payload, job.account)
        queue = backend.kinds.queue_of(job.kind)
        wakes_with_commit = queue is not None and backend.may_notify_in_commit(queue)
        accepted = None
        if queue is not None and idempotency_key is None:
            accepted = await backend.batched.submit(job, queue=queue, wake=wakes_with_commit)
        if accepted is None:
            async with naming_kinds(principal, backend):
                accepted = await backend.engine.texts.submit(
                    job,
                    computed=is_known,
                    idempotency_key=idempotency_key,
                    scope=principal.holder,
                    wake=queue if wakes_with_commit else None,
                    own=principal.account is not None,
                )
    if not wakes_with_commit:
        _wake(backend, accepted)
    backend.drives.submitted([job.kind])
    request.scope["penstock.job"] = accepted.id  # for the log
    accepted, seconds = await _wait_until_finished(request, principal, prefer, accepted)
    return _answer(
        accepted,
        status=200 if accepted.deduplicated else 201,
        seconds=seconds,
        headers={
            "Location": f"/v1/jobs/{accepted.id}",
            **({"Idempotent-Replayed": "true"} if accepted.replayed else {}),
        },
    )


@routes.add(
    "GET",
    "/v1/jobs",
    summary="List jobs, newest first",
    answer=answers.JobPage,
    about="A page",
    refuses=(404,),
)
async def page(  # noqa: PLR0913  # one per filter of the contract
    *,
    principal: Reader,
    backend: Backend,
    status: JobStatus | None = None,
    kind: str | None = None,
    queue: str | None = None,
    account: str | None = None,
    topic: str | None = None,
    batch: UUID | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Jobs without their attempts, position and ETA.

    A page may have fewer than `limit` jobs and not be the last: only the last page has
    `next_cursor: null`.
    """
    before = cursors.read(cursor)
    own = principal.scope
    if own.job is not None:
        raise NotAllowed("a token for a job gives access to that job only", code="not_allowed")
    nothing = (own.account is not None and account not in (None, own.account)) or (
        own.topic is not None and topic not in (None, own.topic)
    )
    if nothing:
        return _page([], None)
    job_filter = JobFilter(
        status=status,
        kind=kind,
        queue=queue,
        account=own.account or account,
        topic=own.topic or topic,
    )
    jobs = await backend.engine.texts.jobs(
        job_filter, batch=batch, limit=limit, before=before, public=not principal.sees_all
    )
    return _page(jobs.items, cursors.write(jobs.after))


@routes.add(
    "GET",
    "/v1/jobs/{job_id}",
    summary="Read a job",
    answer=answers.Job,
    about="The job; until it has finished, with `Retry-After`",
    responses={304: {"description": "Not changed since the `ETag` in `If-None-Match`"}},
)
async def read(
    job_id: UUID,
    request: Request,
    principal: Reader,
    backend: Backend,
    prefer: Prefer = None,
) -> Response:
    job = await backend.batched.read(job_id, principal.scope)
    job, seconds = await _wait_until_finished(request, principal, prefer, job)
    tag = f'"{hashlib.blake2b(job.text.encode(), digest_size=12).hexdigest()}"'
    return _answer(
        job,
        status=304 if _names(request.headers.get("if-none-match", ""), tag) else 200,
        headers={"ETag": tag, "Cache-Control": "private, no-cache"},
        seconds=seconds,
    )


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    answer=answers.Job,
    about="The job; a finished one is not changed",
    refuses=(409,),
)
async def cancel(job_id: UUID, principal: Canceller, backend: Backend) -> Response:
    """A waiting job is cancelled at once; a running job is asked to stop."""
    return _answer(await backend.engine.texts.cancel(job_id, principal.scope))


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/retry",
    status=201,
    summary="Retry a job",
    answer=answers.RetriedJob,
    about="Of a finished job: a new job with `retry_of`",
    also={200: "Of a scheduled job: it runs now. Or the live duplicate, `deduplicated`"},
    refuses=(402, 409),
)
async def retry(job_id: UUID, request: Request, principal: Submitter, backend: Backend) -> Response:
    retried = await retry_job(backend, job_id, principal.account)
    request.scope["penstock.job"] = retried.id  # for the log
    new = retried.id != job_id and not retried.deduplicated
    return _answer(
        retried,
        status=201 if new else 200,
        headers={"Location": f"/v1/jobs/{retried.id}"} if new else None,
    )


async def retry_job(backend: Backend, job_id: UUID, account: str | None = None) -> Text:
    """Retry a job, and wake the workers of its queue."""
    retried = await backend.engine.texts.retry(job_id, account)
    _wake(backend, retried)
    backend.drives.due([retried.queue])
    return retried


def naming_kinds(principal: Principal, backend: Backend) -> AbstractAsyncContextManager[None]:
    """Add the known kinds to the refusal of an unknown kind, for callers who see all jobs."""
    return naming_known(backend.engine.rows) if principal.sees_all else nullcontext()


def _retry_after(job: Text) -> int | None:
    """When to ask again: after half of the ETA, within bounds; None: the job has finished."""
    if job.status in FINISHED:
        return None
    if job.status in (JobStatus.RUNNING, JobStatus.AWAITING) or job.eta_seconds is None:
        return RETRY_SECONDS
    return max(1, min(LONGEST_RETRY_SECONDS, math.ceil(job.eta_seconds / 2)))


def _answer(
    job: Text,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    seconds: int | None = None,
) -> Response:
    """Answer with the JSON of Postgres; `seconds`: how long the call may have waited for it."""
    sent = dict(headers or ())
    wait = _retry_after(job)
    if wait is not None:
        sent["Retry-After"] = str(wait)
    if seconds is not None:
        sent["Preference-Applied"] = f"wait={seconds}"
    if status == HTTPStatus.NOT_MODIFIED:
        return Response(status_code=status, headers=sent)
    return Response(job.text, status_code=status, media_type=JSON, headers=sent)


def _names(if_none_match: str, tag: str) -> bool:
    tags = (each.strip().removeprefix("W/") for each in if_none_match.split(","))
    return if_none_match.strip() == "*" or tag in tags


async def _wait_until_finished(
    request: Request, principal: Principal, prefer: str | None, job: Text
) -> tuple[Text, int | None]:
    """Wait as long as the caller prefers; return the job and the longest possible wait.

    Members of the first answer that are not of the job (`balance`, `deduplicated`) stay in it. A
    caller that has reached its limit of streams and waiting requests is answered at once.
    """
    wait = _WAIT.search(prefer or "")
    if wait is None:
        return job, None
    seconds = min(int(wait[1]), LONGEST_WAIT_SECONDS)
    if seconds and job.status not in FINISHED:
        if not limits(request).may_wait(request.scope, principal):
            return job, None
        backend: Backend = request.app.state.backend
        await backend.live.until_final(job.id, seconds)
        later = await backend.batched.read(job.id, principal.scope)
        merged = json.dumps(json.loads(job.text) | json.loads(later.text))
        job = job._replace(text=merged, status=later.status, eta_seconds=later.eta_seconds)
    return job, seconds


def _wake(backend: Backend, job: Text) -> None:
    if job.status is JobStatus.QUEUED and not job.deduplicated and not job.replayed and job.queue:
        backend.wake(job.queue)


def _page(items: Sequence[str], after: str | None) -> Response:
    return Response(
        f'{{"items": [{", ".join(items)}], "next_cursor": {json.dumps(after)}}}', media_type=JSON
    )


def read_form(
    backend: Backend, principal: Principal, form: SubmitJob, *, index: int | None = None
) -> tuple[NewJob, bool]:
    """Return the job of a form, with its payload checked; and whether this process knows the kind.

    The app's code computes fields that the form leaves out; others come from kind, plan and queue.
    """
    path = "" if index is None else f"jobs.{index}."
    if principal.account is not None:
        _refuse_reserved(form, path)
    checked = backend.kinds.check(form.kind, form.payload, index=index or 0)
    payload, options = checked or (form.payload, {})
    if principal.account is not None:
        options["account"] = principal.account
    for name in PLAIN:
        if (value := getattr(form, name)) is not None:
            options[name] = value
    for name in LENGTHS:
        if (seconds := getattr(form, f"{name}_seconds")) is not None:
            options[name] = timedelta(seconds=seconds)
    return NewJob(kind=form.kind, payload=payload, **options), checked is not None


def _refuse_reserved(form: SubmitJob, path: str) -> None:
    """Refuse fields that an account's key may not set: it does not choose its price or priority."""
    for name in _RESERVED:
        if getattr(form, name) is not None:
            raise NotAllowed(
                f"an account's key may not set {path}{name}",
                code="not_allowed",
                field=f"{path}{name}",
                hint="Leave it out, or submit with a key of kind app.",
            )


@contextmanager
def naming_location(*, batch: bool = False) -> Iterator[None]:
    """Make refusals name the path in the body: `payload.answer`, `jobs.17.payload.answer`."""
    try:
        yield
    except Refused as error:
        if error.code == "invalid_payload":
            error.field = _in_payload(error.field)
            for fault in error.members.get("faults", ()):
                fault["field"] = _in_payload(fault["field"])
        index = error.members.get("index")
        if not batch:
            error.members.pop("index", None)
        elif isinstance(index, int) and error.field not in (None, "jobs"):
            error.field = f"jobs.{index}.{error.field}"
            for fault in error.members.get("faults", ()):
                fault["field"] = f"jobs.{index}.{fault['field']}"
        raise


def _in_payload(field: str | None) -> str:
    if field is None or field == "payload" or field.startswith("payload."):
        return field or "payload"
    return f"payload.{field}"
