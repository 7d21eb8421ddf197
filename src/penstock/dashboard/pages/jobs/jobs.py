"""Jobs: all there are, newest first, by what somebody looks for."""

import re
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.components import sentences
from penstock.dashboard.components.filters import Filter, read_filter, read_id
from penstock.dashboard.components.words import STATUSES
from penstock.dashboard.frame import backend, go, page, render
from penstock.engine.engine import Engine
from penstock.engine.queries.lists import MOST_COUNTED, RowPage
from penstock.errors import Invalid, NotFound, Refused
from penstock.http.schemas import cursors

PAGE_ROWS = 50
_STATES = ("scheduled", "queued", "running", "awaiting", "succeeded", "failed", "cancelled")
_LONGEST_SEARCH = 500
# Tables show the last eight characters of an id (`short` in words.py).
_END_OF_ID = re.compile(r"[0-9a-fA-F]{6,12}")
# Statistics are a little behind: with fewer jobs that would be seen.
_ESTIMATED_FROM = 2 * MOST_COUNTED


@page("/jobs")
async def show(request: Request) -> Response:
    asked = request.query_params
    engine = backend(request).engine
    search = asked.get("q", "").strip()[:_LONGEST_SEARCH].replace("\0", "")
    found = await find(engine, search) if search else None
    if isinstance(found, str):
        return go(request, found)
    wanted, fault = _wanted(asked)
    newest = read_id(asked.get("from", ""))
    before = cursors.read(asked.get("cursor") or None)
    first = before is None
    if before is None and newest is not None:
        # While jobs are ticked the page stays where it is: nothing newer pushes them away.
        before = UUID(int=min(newest.int + 1, 2**128 - 1))
    try:
        rows = await engine.rows.page(
            wanted.jobs, batch=wanted.batch, limit=PAGE_ROWS, before=before
        )
    except NotFound as error:
        fault, rows = error, RowPage([], None, seen=False)  # a kind or queue that is gone
    return render(
        request,
        "jobs/jobs.html",
        wanted=wanted,
        fault=fault,
        search=search,
        offers=found,
        looks_like_id=read_id(search) is not None,
        rows=rows,
        total=None if fault or not first else await total(engine, wanted, rows),
        held=newest is not None and first,
        live=first and not search,
        next=_next(wanted, rows),
        first=first,
        states=_STATES,
        kinds=await engine.rows.kinds(),
        queues=await engine.rows.queues(),
        note=sentences.note,
        took=sentences.took,
    )


async def total(engine: Engine, wanted: Filter, rows: RowPage) -> str:
    """How many there are, and how sure that is."""
    if rows.after is None:
        return _jobs(len(rows.items))
    if rows.seen:
        return f"{_jobs(len(rows.items))} among the newest 100,000"
    if not wanted.fields and (about := await engine.rows.estimate()) > _ESTIMATED_FROM:
        return f"About {_rounded(about):,} jobs (an estimate: to count them all would take long)"
    counted = await engine.rows.count(wanted.jobs, batch=wanted.batch, most=MOST_COUNTED)
    if counted.exact:
        return _jobs(counted.jobs)
    if counted.jobs >= MOST_COUNTED:
        return f"More than {MOST_COUNTED:,} jobs (counting stops there)"
    return f"At least {_jobs(counted.jobs)} (of the newest 100,000 looked at)"


async def find(engine: Engine, text: str) -> str | list[tuple[str, str]]:
    """Where an id, or the end of one, leads to; else what has this name: (words, address) each."""
    its_id = read_id(text)
    if its_id is not None:
        return await _by_id(engine, its_id) or []
    offers = []
    jobs = await engine.rows.by_end(text) if _END_OF_ID.fullmatch(text) else []
    for job in jobs:
        words = f"{job.kind or 'Job'} {job.id}, {STATUSES[job.status].lower()}"
        offers.append((words, f"jobs/{job.id}"))
    try:
        await engine.accounts.show(text)
        offers.append((f"Jobs of account {text}", Filter(account=text).address()))
    except (NotFound, Invalid):
        pass
    topic = Filter(topic=text)
    if (await engine.rows.page(topic.jobs, limit=1)).items:
        offers.append((f"Jobs of topic {text}", topic.address()))
    return offers[0][1] if len(offers) == len(jobs) == 1 else offers


async def _by_id(engine: Engine, its_id: UUID) -> str | None:
    if await engine.rows.read([its_id]):
        return f"jobs/{its_id}"
    try:
        await engine.texts.batch(its_id, limit=1)
    except NotFound:
        return None
    return f"batches/{its_id}"


def _wanted(asked: Any) -> tuple[Filter, Refused | None]:
    """The filter; where it cannot be read, none, and why."""
    try:
        return read_filter(asked), None
    except Invalid as error:
        return Filter(), error


def _next(wanted: Filter, rows: RowPage) -> str | None:
    cursor = cursors.write(rows.after)
    return None if cursor is None else wanted.address(cursor=cursor)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _rounded(count: int) -> int:
    """To three digits: more would look as if it were counted."""
    return round(count, 3 - len(str(count)))
