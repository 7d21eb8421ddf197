"""The page of a job: its status, history, payload and result; retry and cancel."""

import json
import time
from typing import Any
from uuid import UUID

from penstock.dashboard.components.job_words import headline, reason, timeline
from penstock.dashboard.frame import (
    FormData,
    Request,
    Response,
    action,
    backend,
    go,
    page,
    render,
)
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import LIVE
from penstock.errors import NotFound
from penstock.http.auth import tokens
from penstock.http.routes import uploads
from penstock.http.routes.jobs import retry_job

# A page shows this much of a payload or result; the rest is a download.
SHOWN_CHARACTERS = 50_000
MOST_CHUNKS = 2_000
# A page shows this much from the end of an attempt's output, because it is reloaded often.
SHOWN_OUTPUT = 200_000
_MOST_DELIVERIES = 20
# The lifetime of the page's token; the page then asks for another one.
_WATCH_SECONDS = 3_600
_PARTS = ("payload", "result")


@page("/jobs/{job_id:uuid}")
async def show(request: Request, job_id: UUID) -> Response:
    engine = backend(request).engine
    try:
        job = await engine.rows.inspect(job_id)
    except NotFound:
        return render(request, "jobs/job_gone.html", status=404, job_id=job_id)
    live = job.status in LIVE
    deliveries = [] if live else await engine.webhooks.list(job=job_id, limit=_MOST_DELIVERIES)
    chunks = await engine.rows.last_chunks(job_id, most=MOST_CHUNKS) if job.attempt else []
    # The output of its last attempt, in order.
    output = "".join(
        chunk.data if isinstance(chunk.data, str) else f"{_plain(chunk.data)}\n" for chunk in chunks
    )
    return render(
        request,
        "jobs/job.html",
        job=job,
        # A finished job changes only while a webhook is still to be sent.
        live=live or any(delivery["status"] == "pending" for delivery in deliveries),
        is_live=live,
        headline=headline(job),
        reason=reason(job),
        timeline=timeline(job),
        partial=_partial(job),
        metadata=[(name, _plain(value)) for name, value in job.metadata.items()],
        deliveries=deliveries,
        blocked=await engine.lists.blocked_loops(job_id) if job.attempt else [],
        output=output[-SHOWN_OUTPUT:],
        last=(chunks[-1].attempt, chunks[-1].seq) if chunks else (0, 0),
        watch=_watch_token(request, job_id) if live else None,
        cut=len(chunks) == MOST_CHUNKS or len(output) > SHOWN_OUTPUT,
    )


@page("/jobs/{job_id:uuid}/{part:str}")
async def show_body(request: Request, job_id: UUID, part: str) -> Response:
    """Show a payload or result, on the job's page or, without scripts, on its own page."""
    name = part.removesuffix(".json")
    if name not in _PARTS:
        return render(request, "errors/not_found.html", status=404)
    rows = backend(request).engine.rows
    try:
        body = await rows.body(job_id, name, most=None if part != name else SHOWN_CHARACTERS)
    except NotFound:
        return render(request, "jobs/job_gone.html", status=404, job_id=job_id)
    if part != name:
        return Response(
            body.text or "null",
            media_type="application/json",
            headers={"Content-Disposition": f'attachment; filename="{job_id}-{name}.json"'},
        )
    return render(
        request,
        "jobs/job_body.html",
        job_id=job_id,
        part=name,
        body=body,
        encrypted=(body.text or "").lstrip("{ \n").startswith('"$enc"'),
        shown=SHOWN_CHARACTERS,
    )


@page("/uploads/{upload_id:uuid}")
async def show_file(request: Request, upload_id: UUID) -> Response:
    """Send a file that a payload or result refers to, as a download."""
    behind = backend(request)
    upload = await behind.engine.uploads.find(upload_id)
    return uploads.sent(request, behind, upload)


@action("/jobs/{job_id:uuid}/retry")
async def retry(request: Request, _form: FormData, job_id: UUID) -> Response:
    job = await retry_job(backend(request), job_id)
    if job.id == job_id:
        notice = "The job is due now."
    elif job.deduplicated:
        notice = "This job already does the same work, so no new job was submitted."
    else:
        notice = "Submitted again. This is the new job."
    return go(request, f"jobs/{job.id}", notice=notice)


@action("/jobs/{job_id:uuid}/cancel")
async def cancel(request: Request, form: FormData, job_id: UUID) -> Response:
    """Cancel a waiting job at once, and a running one after a confirmation."""
    engine = backend(request).engine
    job = await engine.rows.inspect(job_id)
    if job.status in ("running", "awaiting") and form.get("confirm") != "yes":
        return render(request, "jobs/job_cancel.html", job=job, headline=headline(job))
    status = (await engine.texts.cancel(job_id)).status
    notice = f"The job had already {status}. Nothing was changed."
    if status == "cancelled":
        notice = "The job was cancelled."
    elif status in ("running", "awaiting"):
        notice = "The job was asked to stop. Its handler stops at its next check."
    return go(request, f"jobs/{job_id}", notice=notice)


def _watch_token(request: Request, job_id: UUID) -> str:
    """Make a token with which the page's script follows this job, and no other."""
    session = request.state.session
    until = min(int(time.time()) + _WATCH_SECONDS, session.expires)
    claims = tokens.Claims(
        job=str(job_id), expires=until, issuer=session.key or "", session=session.id
    )
    return tokens.make(backend(request).roots, claims)


def _partial(job: JobInfo) -> str | list[tuple[str, str]] | None:
    """Return the partial result: a text, or pairs of name and value."""
    partial = (job.progress or {}).get("partial")
    if partial is None or partial in ({}, []):
        return None
    if isinstance(partial, dict) and not any(
        isinstance(value, dict | list) for value in partial.values()
    ):
        return [(name, _short(_plain(value))) for name, value in partial.items()]
    return _short(_plain(partial, indent=2))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _plain(value: Any, *, indent: int | None = None) -> str:
    """Return text unchanged, and other values as readable JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=indent, ensure_ascii=False)
