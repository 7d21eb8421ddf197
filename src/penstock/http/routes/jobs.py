"""Jobs over HTTP: submit, look, list, cancel, retry."""

import json
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.queries.json_texts import Text
from penstock.engine.queries.lists import JobFilter
from penstock.engine.states import JobStatus
from penstock.errors import NotAllowed
from penstock.http.auth.access import (
    check_payload,
    naming_kinds,
    naming_place,
    refuse_reserved,
    scope_of,
)
from penstock.http.auth.caller import Canceller, Principal, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.routing import HEADER, Routes
from penstock.http.schemas import answers, cursors
from penstock.http.schemas.body import Body
from penstock.http.schemas.cursors import Cursor, Limit
from penstock.http.schemas.forms import SubmitJob, new_job
from penstock.http.schemas.headers import JSON, answer, answer_if_changed
from penstock.http.schemas.prefer import Prefer, applied, waited
from penstock.net.public_addresses import refuse_private

routes = Routes("jobs")


@routes.add(
    "POST",
    "/v1/jobs",
    status=201,
    summary="Submit a job",
    answer=answers.SubmittedJob,
    about="Accepted",
    also={200: "A live job has the same dedupe key: here it is"},
    refuses=(402, 404, 409),
)
async def submit(  # noqa: PLR0913, PLR0917  # one per parameter of the contract
    request: Request,
    principal: Submitter,
    behind: Backend,
    form: Annotated[SubmitJob, Body(code="invalid_job")],
    idempotency_key: Annotated[
        str | None,
        HEADER,
        Field(
            alias="idempotency-key",
            description="A repetition with the same key gets the first one's job.",
        ),
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
            together = await behind.batched.submit(job, queue=queue, wake=rides)
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
        lambda: behind.batched.read(found.id, scope_of(principal)),
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
    behind: Backend,
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


@routes.add(
    "GET",
    "/v1/jobs/{job_id}",
    summary="Look at a job",
    answer=answers.Job,
    about="The job; while it lives with `Retry-After`",
    responses={304: {"description": "As in `If-None-Match`"}},
)
async def read(
    job_id: UUID,
    request: Request,
    principal: Reader,
    behind: Backend,
    prefer: Prefer = None,
) -> Response:

    async def look() -> Text:
        return await behind.batched.read(job_id, scope_of(principal))

    job, seconds = await waited(prefer, request, principal, behind, await look(), look)
    return applied(answer_if_changed(request, job), seconds)


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    answer=answers.Job,
    about="The job; a finished one is as it was",
    refuses=(409,),
)
async def cancel(job_id: UUID, principal: Canceller, behind: Backend) -> Response:
    """One that waits ends at once; one that runs is asked to stop."""
    return answer(await behind.engine.texts.cancel(job_id, scope_of(principal)))


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/retry",
    status=201,
    summary="Retry a job",
    answer=answers.RetriedJob,
    about="A finished one: a new job with `retry_of`",
    also={200: "A scheduled one: runs now. Or a live twin, `deduplicated`"},
    refuses=(402, 409),
)
async def retry(job_id: UUID, principal: Submitter, behind: Backend) -> Response:
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
