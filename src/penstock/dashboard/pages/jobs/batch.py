"""A batch: jobs that were submitted together, seen as one."""

import json
from uuid import UUID

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.base import wording
from penstock.dashboard.components import sentences
from penstock.dashboard.frame import action, backend, go, page, render
from penstock.errors import NotFound
from penstock.http.schemas import cursors

PAGE_ROWS = 50
_STATES = ("succeeded", "failed", "cancelled", "running", "queued")


@page("/batches/{batch_id:uuid}")
async def show(request: Request) -> Response:
    batch_id: UUID = request.path_params["batch_id"]
    after = cursors.read(request.query_params.get("cursor") or None)
    engine = backend(request).engine
    try:
        text, _ = await backend(request).patient.texts.batch(batch_id, limit=1)
    except NotFound:
        return render(request, "jobs/batch_gone.html", status=404, batch_id=batch_id)
    batch = json.loads(text)
    rows = await engine.rows.of_batch(batch_id, limit=PAGE_ROWS, after=after)
    cursor = cursors.write(rows.after)
    left = batch["running"] + batch["queued"]
    return render(
        request,
        "jobs/batch.html",
        batch=batch,
        left=left,
        live=left > 0 and after is None,
        states=_STATES,
        headline=_headline(batch),
        rows=rows,
        first=f"batches/{batch_id}" if after is not None else None,
        next=None if cursor is None else f"batches/{batch_id}?cursor={cursor}",
        note=sentences.note,
        took=sentences.took,
        count=wording.count,
    )


@action("/batches/{batch_id:uuid}/cancel")
async def cancel(request: Request, form: FormData) -> Response:
    batch_id: UUID = request.path_params["batch_id"]
    texts = backend(request).patient.texts
    if form.get("confirm") != "yes":
        text, _ = await texts.batch(batch_id, limit=1)
        return render(
            request, "jobs/batch_cancel.html", batch=json.loads(text), count=wording.count
        )
    text, _ = await texts.cancel_batch(batch_id, limit=1)
    batch = json.loads(text)
    stopping = f", {batch['running']:,} told to stop" if batch["running"] else ""
    return go(
        request,
        f"batches/{batch_id}",
        notice=f"{wording.count(batch['cancelled'], 'job')} of it cancelled{stopping}.",
    )


def _headline(batch: dict[str, int]) -> str:
    """`37 of 100 jobs have ended`, with what is left to wait."""
    total = batch["total"]
    ended = total - batch["running"] - batch["queued"]
    if ended == total:
        failed = batch["failed"]
        return f"All have ended; {f'{failed:,} failed' if failed else 'none failed'}"
    said = f"{ended:,} of {wording.count(total, 'job')} {'has' if ended == 1 else 'have'} ended"
    where = wording.place(batch["position"], batch["eta_seconds"])
    return f"{said}; the next one is {where}" if where else said
