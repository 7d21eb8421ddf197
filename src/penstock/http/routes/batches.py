"""Batches over HTTP: many jobs accepted at once, and seen as one."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.encoding.encode import encode_checked, refuse_nul
from penstock.engine.jobs.jobs import Batch, Submitted, refuse_odd_moment
from penstock.engine.states import JobStatus
from penstock.errors import Invalid, NotAllowed, Refused, TooLarge
from penstock.http.auth.caller import Canceller, Principal, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.routes.jobs import naming_kinds
from penstock.http.routing import Routes
from penstock.http.schemas import answers, cursors
from penstock.http.schemas.body import JSON, LARGEST_BYTES, Body
from penstock.http.schemas.cursors import Cursor, Limit
from penstock.http.schemas.forms import (
    LENGTHS,
    MOST_JOBS,
    PLAIN,
    SubmitBatch,
    SubmitJob,
    check_payload,
    naming_place,
    refuse_reserved,
)
from penstock.net.public_addresses import refuse_private

routes = Routes("batches")

_TEXTS = ("account", "dedupe_key", "topic", "webhook_url")


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
) -> Response:
    """Those that are new form the batch; one with a live twin is answered with its twin's id."""
    if "idempotency-key" in request.headers:
        # Passed over, it would let a caller believe that to repeat this is safe.
        raise Invalid(
            "Idempotency-Key is for one job: give each of a batch a dedupe_key",
            code="invalid_job",
            field="idempotency_key",
        )
    if len(form.jobs) > MOST_JOBS:
        raise TooLarge(
            f"a batch may hold at most {MOST_JOBS} jobs, and this one has {len(form.jobs)}",
            code="batch_too_large",
            field="jobs",
            max_jobs=MOST_JOBS,
            hint="Send several.",
        )
    with naming_place(batch=True):
        batch, unknown = _columns(backend, principal, form.jobs)
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
    return Response(_accepted(submitted), status_code=201, media_type=JSON)


@routes.add(
    "GET",
    "/v1/batches/{batch_id}",
    summary="Look at a batch",
    answer=answers.Batch,
    about="The batch",
)
async def read(
    batch_id: UUID, principal: Reader, backend: Backend, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """Totals of all its jobs, and some of them, in the order in which they were submitted."""
    _refuse_narrow(principal)
    text, after = await backend.patient.texts.batch(
        batch_id, account=principal.account, limit=limit, after=cursors.read(cursor)
    )
    return _batch(text, after)


@routes.add(
    "POST",
    "/v1/batches/{batch_id}/cancel",
    summary="Cancel what has not ended of a batch",
    answer=answers.Batch,
    about="The batch",
    refuses=(409,),
)
async def cancel(batch_id: UUID, principal: Canceller, backend: Backend) -> Response:
    _refuse_narrow(principal)
    return _batch(*await backend.patient.texts.cancel_batch(batch_id, account=principal.account))


async def _refuse_private_urls(backend: Backend, batch: Batch) -> None:
    """Each address once: to look up its name may take a while."""
    places: dict[str, int] = {}
    for index, url in enumerate(batch.webhook_url or ()):
        if url is not None:
            places.setdefault(url, index)
    for url, index in places.items():
        try:
            await refuse_private(url, allow_private=backend.settings.allow_private)
        except Refused as error:
            error.members.setdefault("index", index)
            raise


def _refuse_narrow(principal: Principal) -> None:
    if principal.job is not None or principal.topic is not None:
        raise NotAllowed(
            "a token for a job or a topic opens no batch",
            code="not_allowed",
            hint="Ask for a token for the account.",
        )


def _columns(
    backend: Backend, principal: Principal, forms: Sequence[SubmitJob]
) -> tuple[Batch, list[int]]:
    """The jobs column by column, and which are of kinds that this process does not know."""
    payloads: list[str] = []
    unknown: list[int] = []
    columns: dict[str, list[Any]] = {}
    for index, form in enumerate(forms):
        if principal.account is not None:
            refuse_reserved(form, f"jobs.{index}.")
        refuse_nul(form.kind, "kind", index=index)
        refuse_odd_moment(form.run_at, index)
        payload, computed, known = check_payload(backend.kinds, form, index=index)
        payloads.append(encode_checked(payload, "payload", index=index))
        if not known:
            unknown.append(index)
        for name, value in computed.items():
            columns.setdefault(name, [None] * len(forms))[index] = value
    _add_given(columns, forms)
    if principal.account is not None:
        columns["account"] = [principal.account] * len(forms)
    for name in _TEXTS:
        for index, value in enumerate(columns.get(name, ())):
            refuse_nul(value, name, index=index)
    if "metadata" in columns:
        columns["metadata"] = [
            None if value is None else encode_checked(value, "metadata", index=index)
            for index, value in enumerate(columns["metadata"])
        ]
    return Batch(kinds=[form.kind for form in forms], payloads=payloads, **columns), unknown


def _add_given(columns: dict[str, list[Any]], forms: Sequence[SubmitJob]) -> None:
    """A caller's value counts before a computed one. A column without any value is left out."""
    for name in PLAIN:
        given = [getattr(form, name) for form in forms]
        if any(value is not None for value in given):
            pairs = zip(given, columns.get(name, given), strict=True)
            columns[name] = [computed if value is None else value for value, computed in pairs]
    for name in LENGTHS:
        seconds = [getattr(form, f"{name}_seconds") for form in forms]
        if any(value is not None for value in seconds):
            columns[name] = [
                None if value is None else timedelta(seconds=value) for value in seconds
            ]


async def _wake(backend: Backend, batch: Batch, submitted: Sequence[Submitted]) -> None:
    """Wake the workers of every queue that has a new job."""
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


def _accepted(submitted: Sequence[Submitted]) -> str:
    batch = next((job.batch for job in submitted if job.batch is not None), None)
    items = ", ".join(
        f'{{"id": "{job.id}", "status": "{job.status}",'
        f' "deduplicated": {"true" if job.deduplicated else "false"}}}'
        for job in submitted
    )
    twins = sum(job.deduplicated for job in submitted)
    return (
        f'{{"batch": {json.dumps(None if batch is None else str(batch))}, "items": [{items}],'
        f' "accepted": {len(submitted) - twins}, "deduplicated": {twins}}}'
    )


def _batch(text: str, after: UUID | None) -> Response:
    # Put beside what Postgres wrote, which may be long.
    next_cursor = json.dumps(cursors.write(after))
    return Response(f'{text[:-1]}, "next_cursor": {next_cursor}}}', media_type=JSON)
