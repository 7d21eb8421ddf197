"""One job: how it stands, what happened to it, what it was given and gave; retry and cancel."""

import json
import time
from typing import Any
from uuid import UUID

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from penstock.base import wording
from penstock.dashboard.components import sentences
from penstock.dashboard.components.timeline import timeline
from penstock.dashboard.frame import action, backend, go, page, render
from penstock.dashboard.session import Session
from penstock.engine.jobs.attempts import Chunk
from penstock.engine.jobs.info import JobInfo
from penstock.engine.states import LIVE
from penstock.errors import NotFound
from penstock.http.auth import tokens
from penstock.http.routes import uploads
from penstock.http.routes.jobs import retry_job

# A person reads so much of a payload or result in a page; the rest is a download.
SHOWN_CHARACTERS = 50_000
MOST_CHUNKS = 2_000
# The same of what a start emits: the end of it, since the page is asked for again and again.
SHOWN_OUTPUT = 200_000
_MOST_DELIVERIES = 20
# The page asks for another one after that.
_WATCH_SECONDS = 3_600
_PARTS = ("payload", "result")


@page("/jobs/{job_id:uuid}")
async def show(request: Request) -> Response:
    job_id: UUID = request.path_params["job_id"]
    engine = backend(request).engine
    try:
        job = await engine.rows.inspect(job_id)
    except NotFound:
        return render(request, "jobs/job_gone.html", status=404, job_id=job_id)
    live = job.status in LIVE
    deliveries = [] if live else await engine.webhooks.list(job=job_id, limit=_MOST_DELIVERIES)
    chunks = await engine.rows.last_chunks(job_id, most=MOST_CHUNKS) if job.attempt else []
    output = _output(chunks)
    return render(
        request,
        "jobs/job.html",
        job=job,
        # What has ended changes no more, except that somebody is still to be told of it.
        live=live or any(one["status"] == "pending" for one in deliveries),
        is_live=live,
        headline=sentences.headline(job),
        reason=sentences.reason(job),
        timeline=timeline(job),
        partial=_partial(job),
        metadata=[(name, _plain(value)) for name, value in job.metadata.items()],
        deliveries=deliveries,
        blocked=await engine.lists.blocked_loops(job_id) if job.attempt else [],
        seconds=wording.seconds,
        output=output[-SHOWN_OUTPUT:],
        last=(chunks[-1].attempt, chunks[-1].seq) if chunks else (0, 0),
        watch=_watch_token(request, job_id) if live else None,
        cut=len(chunks) == MOST_CHUNKS or len(output) > SHOWN_OUTPUT,
        count=wording.count,
    )


@page("/jobs/{job_id:uuid}/{part:str}")
async def body(request: Request) -> Response:
    """A payload or result, for a page that asks for it; as a page of its own without a script."""
    job_id, part = request.path_params["job_id"], request.path_params["part"]
    name = part.removesuffix(".json")
    if name not in _PARTS:
        return render(request, "errors/not_there.html", status=404)
    rows = backend(request).engine.rows
    try:
        found = await rows.body(job_id, name, most=None if part != name else SHOWN_CHARACTERS)
    except NotFound:
        return render(request, "jobs/job_gone.html", status=404, job_id=job_id)
    if part != name:
        return Response(
            found.text or "null",
            media_type="application/json",
            headers={"Content-Disposition": f'attachment; filename="{job_id}-{name}.json"'},
        )
    return render(
        request,
        "jobs/job_body.html",
        job_id=job_id,
        part=name,
        body=found,
        encrypted=(found.text or "").lstrip("{ \n").startswith('"$enc"'),
        shown=SHOWN_CHARACTERS,
    )


@page("/uploads/{upload_id:uuid}")
async def file(request: Request) -> Response:
    """A file that a payload or result refers to, as a download."""
    behind = backend(request)
    found = await behind.engine.uploads.find(request.path_params["upload_id"])
    return uploads.sent(request, behind, found)


@action("/jobs/{job_id:uuid}/retry")
async def retry(request: Request, _form: FormData) -> Response:
    job_id: UUID = request.path_params["job_id"]
    found = await retry_job(backend(request), job_id)
    if found.id == job_id:
        said = "It is due now."
    elif found.deduplicated:
        said = "This job does the same already; nothing new was submitted."
    else:
        said = "Submitted again: this is the new job."
    return go(request, f"jobs/{found.id}", notice=said)


@action("/jobs/{job_id:uuid}/cancel")
async def cancel(request: Request, form: FormData) -> Response:
    """What waits ends at once; to stop what runs is asked for twice."""
    job_id: UUID = request.path_params["job_id"]
    engine = backend(request).engine
    job = await engine.rows.inspect(job_id)
    if job.status in ("running", "awaiting") and form.get("confirm") != "yes":
        return render(request, "jobs/job_cancel.html", job=job, headline=sentences.headline(job))
    found = await engine.texts.cancel(job_id)
    match found.status:
        case "cancelled":
            said = "The job is cancelled."
        case "running" | "awaiting":
            said = "The job is told to stop. It ends when its handler hears of it."
        case status:
            said = f"The job had {status} before; nothing was changed."
    return go(request, f"jobs/{job_id}", notice=said)


def _watch_token(request: Request, job_id: UUID) -> str:
    """For the page's script, which listens to what the job says: it opens this job and no other."""
    session: Session = request.state.session
    until = min(int(time.time()) + _WATCH_SECONDS, session.expires)
    claims = tokens.Claims(
        job=str(job_id), expires=until, issuer=session.key or "", session=session.id
    )
    return tokens.make(backend(request).roots, claims)


def _partial(job: JobInfo) -> str | list[tuple[str, str]] | None:
    """What there is of the result so far: a text, or names with what each has."""
    found = (job.progress or {}).get("partial")
    if found is None or found in ({}, []):
        return None
    if isinstance(found, dict) and not any(isinstance(one, dict | list) for one in found.values()):
        return [(name, _short(_plain(value))) for name, value in found.items()]
    return _short(_plain(found, indent=2))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _output(chunks: list[Chunk]) -> str:
    """What a start emitted, as it came."""
    return "".join(
        one.data if isinstance(one.data, str) else f"{_plain(one.data)}\n" for one in chunks
    )


def _plain(value: Any, *, indent: int | None = None) -> str:
    """Text as it is, all else as people read JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=indent, ensure_ascii=False)
