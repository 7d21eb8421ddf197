"""Batches over HTTP: many jobs submitted in one call, with their totals."""

import json
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.encoding.encode import encode_checked
from penstock.engine.jobs.jobs import Batch, Submitted
from penstock.engine.states import JobStatus
from penstock.errors import Invalid, Refused, TooLarge
from penstock.http.auth.caller import Canceller, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.routes.jobs import (
    naming_kinds,
    naming_location,
    read_form,
)
from penstock.http.routing import JSON, LARGEST_BYTES, Body, Routes
from penstock.http.schemas import answers, cursors
from penstock.http.schemas.cursors import Cursor, Limit
from penstock.http.schemas.forms import MOST_JOBS, SubmitBatch
from penstock.net.public_addresses import refuse_private

routes = Routes("batches")


@routes.add(
    "POST",
    "/v1/jobs/batch",
    status=201,
    summary="Submit many jobs, all or none",
    answer=answers.AcceptedBatch,
    about="Accepted, in order",
    refuses=(402, 404, 409),
)
async def submit(
    request: Request,
    principal: Submitter,
    backend: Backend,
    form: Annotated[SubmitBatch, Body(most=LARGEST_BYTES, code="invalid_job")],
) -> dict[str, Any]:
    """The new jobs form the batch. For a duplicate of a live job, the live job's id is returned."""
    if "idempotency-key" in request.headers:
        # If it were ignored, the caller would believe that repeating this call is safe.
        raise Invalid(
            "Idempotency-Key is for one job: give each job of a batch a dedupe_key",
            code="invalid_job",
            field="idempotency_key",
        )
    if len(form.jobs) > MOST_JOBS:
        raise TooLarge(
            f"a batch may hold at most {MOST_JOBS} jobs, and this one has {len(form.jobs)}",
            code="batch_too_large",
            field="jobs",
            max_jobs=MOST_JOBS,
            hint="Send several batches.",
        )
    with naming_location(batch=True):
        read = [read_form(backend, principal, each, index=n) for n, each in enumerate(form.jobs)]
        batch = Batch.of([job for job, _ in read], encode_checked)
        unknown = [index for index, (_, is_known) in enumerate(read) if not is_known]
        await _refuse_private_urls(backend, batch)
        await backend.engine.uploads.refuse_foreign_batch(batch)
        if unknown:
            await backend.patient.jobs.refuse_computed(batch, unknown)
        async with naming_kinds(principal, backend):
            submitted = await backend.patient.jobs.submit_batch(
                batch, batched=True, own=principal.account is not None
            )
    await _wake(backend, batch, submitted)
    backend.drives.submitted(set(batch.kinds))
    batch_id = next((job.batch for job in submitted if job.batch is not None), None)
    twins = sum(job.deduplicated for job in submitted)
    return {
        "batch": None if batch_id is None else str(batch_id),
        "items": [
            {"id": str(job.id), "status": job.status, "deduplicated": job.deduplicated}
            for job in submitted
        ],
        "accepted": len(submitted) - twins,
        "deduplicated": twins,
    }


@routes.add(
    "GET",
    "/v1/batches/{batch_id}",
    summary="Read a batch",
    answer=answers.Batch,
    about="The batch",
)
async def read(
    batch_id: UUID, principal: Reader, backend: Backend, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """The totals of all its jobs, and a page of the jobs in the order of their submit."""
    principal.refuse_narrow("a token for a job or a topic gives no access to batches")
    text, after = await backend.patient.texts.batch(
        batch_id, account=principal.account, limit=limit, after=cursors.read(cursor)
    )
    return _batch(text, after)


@routes.add(
    "POST",
    "/v1/batches/{batch_id}/cancel",
    summary="Cancel the unfinished jobs of a batch",
    answer=answers.Batch,
    about="The batch",
    refuses=(409,),
)
async def cancel(batch_id: UUID, principal: Canceller, backend: Backend) -> Response:
    principal.refuse_narrow("a token for a job or a topic gives no access to batches")
    return _batch(*await backend.patient.texts.cancel_batch(batch_id, account=principal.account))


async def _refuse_private_urls(backend: Backend, batch: Batch) -> None:
    """Refuse private webhook addresses; each address is checked once, as DNS may be slow."""
    indexes: dict[str, int] = {}
    for index, url in enumerate(batch.webhook_url or ()):
        if url is not None:
            indexes.setdefault(url, index)
    for url, index in indexes.items():
        try:
            await refuse_private(url, allow_private=backend.settings.allow_private)
        except Refused as error:
            error.members.setdefault("index", index)
            raise


async def _wake(backend: Backend, batch: Batch, submitted: Sequence[Submitted]) -> None:
    """Wake the workers of each queue that has a new job."""
    kinds = {
        kind
        for kind, job in zip(batch.kinds, submitted, strict=True)
        if job.status is JobStatus.QUEUED and not job.deduplicated
    }
    queues = {kind: backend.kinds.queue_of(kind) for kind in kinds}
    for queue in {queue for queue in queues.values() if queue is not None}:
        backend.wake(queue)
    unknown = [kind for kind, queue in queues.items() if queue is None]
    if unknown:
        for queue in await backend.engine.jobs.queues_of(unknown):
            backend.wake(queue)


def _batch(text: str, after: UUID | None) -> Response:
    # Appended as text: the JSON of Postgres may be long, so it is not parsed.
    next_cursor = json.dumps(cursors.write(after))
    return Response(f'{text[:-1]}, "next_cursor": {next_cursor}}}', media_type=JSON)
