"""Batches over HTTP: many jobs accepted at once, and seen as one."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.encoding.encode import encode_checked, refuse_nul
from penstock.engine.jobs.jobs import Submitted
from penstock.engine.jobs.requests import Batch, refuse_odd_moment
from penstock.engine.states import JobStatus
from penstock.errors import Invalid, NotAllowed, Refused, TooLarge
from penstock.http.auth.access import check_payload, naming_kinds, naming_place, refuse_reserved
from penstock.http.auth.caller import Canceller, Principal, Reader, Submitter
from penstock.http.backend import Backend
from penstock.http.routing import Routes
from penstock.http.schemas import answers, cursors
from penstock.http.schemas.body import LARGEST_BYTES, Body
from penstock.http.schemas.cursors import Cursor, Limit
from penstock.http.schemas.forms import LENGTHS, MOST_JOBS, PLAIN, SubmitBatch, SubmitJob
from penstock.http.schemas.headers import JSON
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
    behind: Backend,
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
        batch, unknown = _columns(behind, principal, form.jobs)
        await _refuse_private_urls(behind, batch)
        await behind.engine.uploads.refuse_foreign_batch(batch)
        if unknown:
            await behind.patient.jobs.refuse_computed(batch, unknown)
        async with naming_kinds(principal, behind):
            submitted = await behind.patient.jobs.submit_batch(
                batch, batched=True, own=principal.account is not None
            )
    await _wake(behind, batch, submitted)
    behind.drives.submitted(set(batch.kinds))
    return Response(_accepted(submitted), status_code=201, media_type=JSON)


@routes.add(
    "GET",
    "/v1/batches/{batch_id}",
    summary="Look at a batch",
    answer=answers.Batch,
    about="The batch",
)
async def read(
    batch_id: UUID, principal: Reader, behind: Backend, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """Totals of all its jobs, and some of them, in the order in which they were submitted."""
    _refuse_narrow(principal)
    text, after = await behind.patient.texts.batch(
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
async def cancel(batch_id: UUID, principal: Canceller, behind: Backend) -> Response:
    _refuse_narrow(principal)
    return _batch(*await behind.patient.texts.cancel_batch(batch_id, account=principal.account))


async def _refuse_private_urls(behind: Backend, batch: Batch) -> None:
    """Each address once: to look up its name may take a while."""
    places: dict[str, int] = {}
    for index, url in enumerate(batch.webhook_url or ()):
        if url is not None:
            places.setdefault(url, index)
    for url, index in places.items():
        try:
            await refuse_private(url, allow_private=behind.settings.allow_private)
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
    behind: Backend, principal: Principal, forms: Sequence[SubmitJob]
) -> tuple[Batch, list[int]]:
    """The jobs column by column, and which are of kinds that this process does not know."""
    payloads: list[str] = []
    unknown: list[int] = []
    told: dict[str, list[Any]] = {}
    for index, form in enumerate(forms):
        refuse_reserved(form, principal, f"jobs.{index}.")
        refuse_nul(form.kind, "kind", index=index)
        refuse_odd_moment(form.run_at, index)
        payload, computed, known = check_payload(behind, form, index=index)
        payloads.append(encode_checked(payload, "payload", index=index))
        if not known:
            unknown.append(index)
        for name, value in computed.items():
            told.setdefault(name, [None] * len(forms))[index] = value
    _add_said(told, forms)
    if principal.account is not None:
        told["account"] = [principal.account] * len(forms)
    for name in _TEXTS:
        for index, value in enumerate(told.get(name, ())):
            refuse_nul(value, name, index=index)
    if "metadata" in told:
        told["metadata"] = [
            None if value is None else encode_checked(value, "metadata", index=index)
            for index, value in enumerate(told["metadata"])
        ]
    return Batch(kinds=[form.kind for form in forms], payloads=payloads, **told), unknown


def _add_said(told: dict[str, list[Any]], forms: Sequence[SubmitJob]) -> None:
    """What callers say counts before what code computes. A column that nobody fills stays away."""
    for name in PLAIN:
        said = [getattr(form, name) for form in forms]
        if any(value is not None for value in said):
            pairs = zip(said, told.get(name, said), strict=True)
            told[name] = [other if value is None else value for value, other in pairs]
    for name in LENGTHS:
        seconds = [getattr(form, f"{name}_seconds") for form in forms]
        if any(value is not None for value in seconds):
            told[name] = [None if value is None else timedelta(seconds=value) for value in seconds]


async def _wake(behind: Backend, batch: Batch, submitted: Sequence[Submitted]) -> None:
    """Tell the workers of every queue that has got something."""
    kinds = {
        kind
        for kind, one in zip(batch.kinds, submitted, strict=True)
        if one.status is JobStatus.QUEUED and not one.deduplicated
    }
    queues = {kind: behind.kinds.queue_of(kind) for kind in kinds}
    for queue in {queue for queue in queues.values() if queue is not None}:
        behind.wake(queue)
    unknown = [kind for kind, queue in queues.items() if queue is None]
    if unknown:
        for queue in await behind.engine.jobs.queues_of(unknown):
            behind.wake(queue)


def _accepted(submitted: Sequence[Submitted]) -> str:
    batch = next((one.batch for one in submitted if one.batch is not None), None)
    items = ", ".join(
        f'{{"id": "{one.id}", "status": "{one.status}",'
        f' "deduplicated": {"true" if one.deduplicated else "false"}}}'
        for one in submitted
    )
    twins = sum(one.deduplicated for one in submitted)
    return (
        f'{{"batch": {json.dumps(None if batch is None else str(batch))}, "items": [{items}],'
        f' "accepted": {len(submitted) - twins}, "deduplicated": {twins}}}'
    )


def _batch(text: str, after: UUID | None) -> Response:
    # Put beside what Postgres wrote, which may be long.
    told = json.dumps(cursors.write(after))
    return Response(f'{text[:-1]}, "next_cursor": {told}}}', media_type=JSON)
