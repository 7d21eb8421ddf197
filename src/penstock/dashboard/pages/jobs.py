"""Lists of jobs: all jobs with filters and search, the newest first; the jobs of a batch."""

import json
import re
from typing import Any
from uuid import UUID

from penstock.base.wording import count, queue_position
from penstock.dashboard.components.filters import Filter, read_filter, read_id
from penstock.dashboard.components.words import STATUSES
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
from penstock.engine.engine import Engine
from penstock.engine.queries.lists import MOST_COUNTED, RowPage
from penstock.errors import Invalid, NotFound, Refused
from penstock.http.schemas import cursors

PAGE_ROWS = 50
_LONGEST_SEARCH = 500
# Tables show the last eight characters of an id (`short` in words.py).
_END_OF_ID = re.compile(r"[0-9a-fA-F]{6,12}")
# Statistics lag behind a little, which would be visible with fewer jobs.
_ESTIMATED_FROM = 2 * MOST_COUNTED


@page("/jobs")
async def show(request: Request) -> Response:
    query = request.query_params
    engine = backend(request).engine
    search = query.get("q", "").strip()[:_LONGEST_SEARCH].replace("\0", "")
    offers = await _search(engine, search) if search else []
    if isinstance(offers, str):
        return go(request, offers)
    fault: Refused | None = None
    try:
        wanted = read_filter(query)
    except Invalid as error:
        wanted, fault = Filter(), error
    newest = read_id(query.get("from", ""))
    before = cursors.read(query.get("cursor") or None)
    first = before is None
    if before is None and newest is not None:
        # While jobs are selected, newer ones are not shown: they would push the selection away.
        before = UUID(int=min(newest.int + 1, 2**128 - 1))
    try:
        rows = await engine.rows.page(wanted, batch=wanted.batch, limit=PAGE_ROWS, before=before)
    except NotFound as error:
        fault, rows = error, RowPage([], None, seen=False)  # the kind or queue does not exist
    cursor = cursors.write(rows.after)
    return render(
        request,
        "jobs/jobs.html",
        wanted=wanted,
        fault=fault,
        search=search,
        offers=offers,
        is_id=read_id(search) is not None,
        rows=rows,
        total=None if fault or not first else await _total(engine, wanted, rows),
        held=newest is not None and first,
        # No refresh after a search or a fault: it would replace the message.
        live=first and not search and fault is None,
        next=None if cursor is None else wanted.address(cursor=cursor),
        first=first,
        kinds=await engine.rows.kinds(),
        queues=await engine.rows.queues(),
    )


async def _total(engine: Engine, wanted: Filter, rows: RowPage) -> str:
    """Return the number of jobs, and how exact it is."""
    if rows.after is None:
        return count(len(rows.items), "job")
    if rows.seen:
        return f"{count(len(rows.items), 'job')} among the newest 100,000"
    if not wanted.fields and (about := await engine.rows.estimate()) > _ESTIMATED_FROM:
        # Three digits: more would look like an exact number.
        about = round(about, 3 - len(str(about)))
        return f"About {about:,} jobs (an estimate: counting all would take long)"
    counted = await engine.rows.count(wanted, batch=wanted.batch, most=MOST_COUNTED)
    if counted.exact:
        return count(counted.jobs, "job")
    if counted.jobs >= MOST_COUNTED:
        return f"More than {MOST_COUNTED:,} jobs (counting stops there)"
    return f"At least {count(counted.jobs, 'job')} (among the newest 100,000)"


async def _search(engine: Engine, text: str) -> str | list[tuple[str, str]]:
    """Return the path for an id or its end, or all things of this name as (words, path)."""
    if (its_id := read_id(text)) is not None:
        if await engine.rows.read([its_id]):
            return f"jobs/{its_id}"
        try:
            await engine.texts.batch(its_id, limit=1)
        except NotFound:
            return []
        return f"batches/{its_id}"
    jobs = await engine.rows.by_end(text) if _END_OF_ID.fullmatch(text) else []
    offers = [
        (f"{job.kind or 'Job'} {job.id}, {STATUSES[job.status].lower()}", f"jobs/{job.id}")
        for job in jobs
    ]
    try:
        await engine.accounts.show(text)
        offers.append((f"Jobs of account {text}", Filter(account=text).address()))
    except (NotFound, Invalid):
        pass
    topic = Filter(topic=text)
    if (await engine.rows.page(topic, limit=1)).items:
        offers.append((f"Jobs of topic {text}", topic.address()))
    return offers[0][1] if len(offers) == len(jobs) == 1 else offers


@page("/batches/{batch_id:uuid}")
async def show_batch(request: Request, batch_id: UUID) -> Response:
    after = cursors.read(request.query_params.get("cursor") or None)
    try:
        batch = await _read_batch(request, batch_id)
    except NotFound:
        return render(request, "jobs/batch_gone.html", status=404, batch_id=batch_id)
    rows = await backend(request).engine.rows.of_batch(batch_id, limit=PAGE_ROWS, after=after)
    cursor = cursors.write(rows.after)
    left = batch["running"] + batch["queued"]
    return render(
        request,
        "jobs/batch.html",
        batch=batch,
        left=left,
        live=left > 0 and after is None,
        headline=_batch_headline(batch, left),
        rows=rows,
        first=f"batches/{batch_id}" if after is not None else None,
        next=None if cursor is None else f"batches/{batch_id}?cursor={cursor}",
    )


@action("/batches/{batch_id:uuid}/cancel")
async def cancel_batch(request: Request, form: FormData, batch_id: UUID) -> Response:
    if form.get("confirm") != "yes":
        return render(request, "jobs/batch_cancel.html", batch=await _read_batch(request, batch_id))
    text, _ = await backend(request).patient.texts.cancel_batch(batch_id, limit=1)
    batch = json.loads(text)
    stopping = f", {batch['running']:,} asked to stop" if batch["running"] else ""
    return go(
        request,
        f"batches/{batch_id}",
        notice=f"{count(batch['cancelled'], 'job')} of this batch cancelled{stopping}.",
    )


async def _read_batch(request: Request, batch_id: UUID) -> dict[str, Any]:
    text, _ = await backend(request).patient.texts.batch(batch_id, limit=1)
    batch: dict[str, Any] = json.loads(text)
    return batch


def _batch_headline(batch: dict[str, Any], left: int) -> str:
    """Return `37 of 100 jobs have finished`, with the position and ETA of the next one."""
    if not left:
        failed = batch["failed"]
        return f"All have finished; {f'{failed:,} failed' if failed else 'none failed'}"
    finished, total = batch["total"] - left, count(batch["total"], "job")
    text = f"{finished:,} of {total} {'has' if finished == 1 else 'have'} finished"
    position = queue_position(batch["position"], batch["eta_seconds"])
    return f"{text}; the next one is {position}" if position else text
