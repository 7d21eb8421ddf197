"""Jobs over HTTP: submit, look, list, cancel, retry."""

import json
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from penstock.api import answers, cursors
from penstock.api.access import (
    check_payload,
    naming_kinds,
    naming_place,
    refuse_reserved,
    refuse_unless_allowed,
    scope_of,
)
from penstock.api.auth import Principal, allowed
from penstock.api.backend import Backend, backend
from penstock.api.body import Body, documented
from penstock.api.forms import SubmitJob, new_job
from penstock.api.front import directly
from penstock.api.headers import JSON, answer, answer_if_changed
from penstock.api.prefer import Prefer, applied, waited
from penstock.api.problems import documented as problems
from penstock.engine.lists import JobFilter
from penstock.engine.texts import Text
from penstock.errors import NotAllowed, NotFound
from penstock.providers.public import refuse_private
from penstock.states import JobStatus

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_submitters = allowed("admin", "app", "account")
_readers = allowed("admin", "app", "account", "token")
_form = Body(SubmitJob, code="invalid_job")

Submitter = Annotated[Principal, Depends(_submitters)]
Reader = Annotated[Principal, Depends(_readers)]
Behind = Annotated[Backend, Depends(backend)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


async def _submit(request: Request) -> Response:
    principal = await _submitters(request)
    said = request.headers
    return await submit(
        request,
        principal,
        await backend(request),
        await _form(request),
        said.get("idempotency-key"),
        said.get("prefer"),
    )


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    openapi_extra=documented(SubmitJob),
    responses={
        201: answers.documented(answers.SubmittedJob, "Accepted"),
        200: answers.documented(
            answers.SubmittedJob, "A live job has the same dedupe key: here it is"
        ),
        **problems(402, 404, 409, 413, 422),
    },
)
@directly(_submit)
async def submit(  # noqa: PLR0913, PLR0917  # one per parameter of the contract
    request: Request,
    principal: Submitter,
    behind: Behind,
    form: Annotated[SubmitJob, Depends(_form)],
    idempotency_key: Annotated[
        str | None,
        Header(description="A repetition with the same key gets the first one's job."),
    ] = None,
    prefer: Prefer = None,
) -> Response:
    refuse_reserved(form, principal)
    with naming_place():
        payload, computed, known = check_payload(behind, form)
        job = new_job(form, payload, {**computed, **_theirs(principal)})
        if job.webhook_url is not None:
            await refuse_private(job.webhook_url, allow_private=behind.settings.allow_private)
        await behind.engine.uploads.refuse_foreign(job.kind, payload, job.account)
        queue = behind.kinds.queue_of(job.kind)
        rides = queue is not None and behind.may_ride(queue)
        together = None
        if queue is not None and idempotency_key is None:
            together = await behind.desk.submit(job, queue=queue, wake=rides)
        async with naming_kinds(principal, behind):
            found = together or await behind.engine.texts.submit(
                job,
                computed=known,
                idempotency_key=idempotency_key,
                scope=principal.holder,
                wake=queue if rides else None,
                own=principal.account is not None,
            )
    if not rides:
        _wake(behind, found)
    behind.drives.submitted([job.kind])
    found, seconds = await waited(
        prefer,
        request,
        principal,
        behind,
        found,
        lambda: behind.desk.look(found.id, scope_of(principal)),
    )
    response = answer(
        found,
        status=200 if found.deduplicated else 201,
        headers={
            "Location": f"/v1/jobs/{found.id}",
            **({"Idempotent-Replayed": "true"} if found.replayed else {}),
        },
    )
    return applied(response, seconds)


@router.get(
    "",
    summary="List jobs, newest first",
    responses={200: answers.documented(answers.JobPage, "A page"), **problems(404, 422)},
)
async def page(  # noqa: PLR0913  # one per filter of the contract
    *,
    principal: Reader,
    behind: Behind,
    status: JobStatus | None = None,
    kind: str | None = None,
    queue: str | None = None,
    account: str | None = None,
    topic: str | None = None,
    batch: UUID | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Jobs without their attempts, place and wait.

    A page may have fewer than `limit` and not be the last: only `next_cursor: null` says so.
    """
    refuse_unless_allowed(principal, "read")
    before = cursors.read(cursor)
    mine = scope_of(principal)
    if mine.job is not None:
        raise NotAllowed("a token for a job opens that job only", code="not_allowed")
    nothing = (mine.account is not None and account not in (None, mine.account)) or (
        mine.topic is not None and topic not in (None, mine.topic)
    )
    if nothing:
        return _page([], None)
    wanted = JobFilter(
        status=status,
        kind=kind,
        queue=queue,
        account=mine.account or account,
        topic=mine.topic or topic,
    )
    found = await behind.engine.texts.jobs(
        wanted, batch=batch, limit=limit, before=before, public=not principal.sees_all
    )
    return _page(found.items, cursors.write(found.after))


async def _read(request: Request) -> Response:
    principal = await _readers(request)
    try:
        job_id = UUID(request.path_params["job_id"])
    except ValueError:
        raise NotFound(
            "there is nothing here: job_id is not an id", code="not_found", field="job_id"
        ) from None
    prefer = request.headers.get("prefer")
    return await read(job_id, request, principal, await backend(request), prefer)


@router.get(
    "/{job_id}",
    summary="Look at a job",
    responses={
        200: answers.documented(answers.Job, "The job; while it lives with `Retry-After`"),
        304: {"description": "As in `If-None-Match`"},
        **problems(404),
    },
)
@directly(_read)
async def read(
    job_id: UUID,
    request: Request,
    principal: Reader,
    behind: Behind,
    prefer: Prefer = None,
) -> Response:
    refuse_unless_allowed(principal, "read")

    async def look() -> Text:
        return await behind.desk.look(job_id, scope_of(principal))

    job, seconds = await waited(prefer, request, principal, behind, await look(), look)
    return applied(answer_if_changed(request, job), seconds)


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    responses={
        200: answers.documented(answers.Job, "The job; a finished one is as it was"),
        **problems(404, 409),
    },
)
async def cancel(job_id: UUID, principal: Reader, behind: Behind) -> Response:
    """One that waits ends at once; one that runs is asked to stop."""
    refuse_unless_allowed(principal, "cancel")
    return answer(await behind.engine.texts.cancel(job_id, scope_of(principal)))


@router.post(
    "/{job_id}/retry",
    status_code=201,
    summary="Retry a job",
    responses={
        201: answers.documented(answers.RetriedJob, "A finished one: a new job with `retry_of`"),
        200: answers.documented(
            answers.RetriedJob, "A scheduled one: runs now. Or a live twin, `deduplicated`"
        ),
        **problems(402, 404, 409),
    },
)
async def retry(job_id: UUID, principal: Submitter, behind: Behind) -> Response:
    found = await retry_job(behind, job_id, principal.account)
    new = found.id != job_id and not found.deduplicated
    return answer(
        found,
        status=201 if new else 200,
        headers={"Location": f"/v1/jobs/{found.id}"} if new else None,
    )


async def retry_job(behind: Backend, job_id: UUID, account: str | None = None) -> Text:
    """Retry it, and tell who may work on it."""
    found = await behind.engine.texts.retry(job_id, account)
    _wake(behind, found)
    behind.drives.due([found.queue])
    return found


def _theirs(principal: Principal) -> dict[str, str]:
    return {} if principal.account is None else {"account": principal.account}


def _wake(behind: Backend, job: Text) -> None:
    if job.status is JobStatus.QUEUED and not job.deduplicated and not job.replayed and job.queue:
        behind.wake(job.queue)


def _page(items: Sequence[str], after: str | None) -> Response:
    return Response(
        f'{{"items": [{", ".join(items)}], "next_cursor": {json.dumps(after)}}}', media_type=JSON
    )
