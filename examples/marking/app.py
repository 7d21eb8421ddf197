"""The web app: the class, its marks, the queue; and Penstock's API and component beside them.

uvicorn marking.app:web --no-access-log     (python examples/marking starts it with all it needs)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import asyncpg
import httpx
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response

from marking import jobs, pages, session, store, switch
from marking.assignments import ASSIGNMENTS
from marking.errors import Wrong, answer
from marking.forms import read_correction, read_submission
from marking.status import figures, held_up, sentence_of, shown, totals
from missing import Missing
from penstock import JobInfo, Refused, server
from penstock.engine.queries.lists import JobFilter
from penstock.net import drive_call
from penstock.security.roots import read_roots
from protect import Protect

JOBS_SHOWN = 100
# A call that drives the queue runs jobs for at most 45 s.
CALL_SECONDS = 90
API = "/api/"
# Paths of this app. All others are Penstock's, which has its own headers.
HOME = "/"
OURS = (API, "/results", "/sign-in", "/ai-queue", "/assets/")
# Below these the operators' dashboard has pages of its own for what is gone.
DASHBOARD = ("/jobs/", "/batches/", "/queues/", "/plans/", "/accounts/", "/uploads/")
WENT_WRONG = "Something went wrong here. Look at the marks before you try again."

# Standing: this process stays, so it also looks for calls that were lost on their way.
penstock = server.api(jobs.app, standing=True)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Start Penstock's API, create our table, and store the answers of the class."""
    async with (
        server.running(penstock),
        asyncpg.create_pool(await jobs.app.dsn(), min_size=1, max_size=10) as pool,
    ):
        async with pool.acquire() as conn:
            await store.create_tables(conn)
        web.state.pool = pool
        web.state.roots = read_roots(jobs.app.settings)
        yield


# Without FastAPI's own pages, which would be open to everybody.
web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
# Not at /static, where Penstock's files are, including its component.
web.mount("/assets", StaticFiles(directory=Path(__file__).with_name("static")))

# --- an assignment --------------------------------------------------------------------------------


@web.get("/api/assignments/{assignment}")
async def answers(request: Request, _teacher: session.Teacher, assignment: str) -> JSONResponse:
    """Return all answers with their marks or statuses."""
    _find(assignment)
    return JSONResponse({"ok": True, **await _assignment(request, assignment)})


@web.post("/api/assignments/{assignment}/mark")
async def mark(request: Request, _teacher: session.Teacher, assignment: str) -> JSONResponse:
    """Queue one answer, or all without a mark, and respond before any is marked."""
    session.refuse_other_sites(request)
    _find(assignment)
    submission = await read_submission(request)
    pool: asyncpg.Pool = request.app.state.pool
    if submission is not None:
        async with pool.acquire() as conn:
            if not await store.has(conn, assignment, submission):
                raise Wrong("submission_id", "There is no such answer here.", status=404)
    asked, found = await jobs.ask_for_marks(pool, assignment, submission)
    said = {"ok": True, "asked": asked, "found": found}
    return JSONResponse({**said, **await _assignment(request, assignment)})


@web.post("/api/assignments/{assignment}/correct")
async def correct(request: Request, _teacher: session.Teacher, assignment: str) -> JSONResponse:
    """Store a mark by the teacher; later callbacks do not change it."""
    session.refuse_other_sites(request)
    _find(assignment)
    given = await read_correction(request)
    most = len(ASSIGNMENTS[assignment].criteria)
    async with request.app.state.pool.acquire() as conn:
        out_of = await store.correct(conn, assignment, given, most)
    if out_of is None:
        raise Wrong("submission_id", "There is no such answer here.", status=404)
    if given.score > out_of:
        raise Wrong("score", f"The points must be a whole number from 0 to {out_of}.")
    return JSONResponse({"ok": True, **await _assignment(request, assignment)})


@web.post("/api/assignments/{assignment}/clear")
async def clear(request: Request, _teacher: session.Teacher, assignment: str) -> JSONResponse:
    """Remove the marks, so that the demonstration can be repeated."""
    session.refuse_other_sites(request)
    _find(assignment)
    now = await _assignment(request, assignment)
    if now["totals"]["pending"] or now["totals"]["marking"]:
        raise Wrong(None, "Some are being marked; clear the marks when they are there.", status=409)
    async with request.app.state.pool.acquire() as conn:
        await store.clear(conn, assignment)
    return JSONResponse({"ok": True, **await _assignment(request, assignment)})


@web.get("/api/assignments/{assignment}/live")
async def live(_teacher: session.Teacher, assignment: str) -> JSONResponse:
    """Return the stream's address, and a token for this topic and its jobs for an hour."""
    _find(assignment)
    token = jobs.app.token(topic=assignment, ttl="1h")
    src = f"/v1/topics/{assignment}"
    url = f"{src}/events?{urlencode({'token': token})}"
    return JSONResponse({"ok": True, "src": src, "token": token, "url": url})


async def _assignment(request: Request, assignment: str) -> dict[str, Any]:
    async with request.app.state.pool.acquire() as conn:
        rows = [shown(row) for row in await store.of_assignment(conn, assignment)]
    return {"totals": totals(rows), "answers": rows}


def _find(assignment: str) -> None:
    if assignment not in ASSIGNMENTS:
        raise Wrong("assignment", "There is no such assignment here.", status=404)


# --- the queue ------------------------------------------------------------------------------------


@web.get("/api/ai-queue")
async def queue_now(request: Request, _teacher: session.Teacher) -> JSONResponse:
    """Return the newest jobs, totals, and the state of the function."""
    engine = await jobs.app.engine()
    found = (await engine.rows.page(JobFilter(queue=jobs.QUEUE), limit=JOBS_SHOWN)).items
    status = await engine.lists.status()
    day = await engine.hourly.metrics(24, queue=jobs.QUEUE)
    async with request.app.state.pool.acquire() as conn:
        whose = await store.whose(conn, [job.id for job in found])
    [queue] = [one for one in status["queues"] if one["name"] == jobs.QUEUE]
    return JSONResponse(
        {
            "ok": True,
            "pending": queue["queued"] + queue["scheduled"],
            "processing": queue["running"] + queue["awaiting"],
            **figures(day["throughput"], datetime.now(UTC)),
            "message": held_up(queue),
            "function": {
                "there": await switch.is_there(),
                "switch": switch.CONTROL_URL is not None,
            },
            "jobs": [_job(job, whose.get(job["id"])) for job in found],
        }
    )


def _job(job: JobInfo, whose: dict[str, Any] | None) -> dict[str, Any]:
    kept = ("id", "status", "attempt", "created_at", "started_at", "finished_at")
    newest = whose is not None and whose["newest"]
    return {name: job[name] for name in kept} | {
        "error": job.error and {"message": sentence_of(job.error)},
        "pupil": whose and whose["pupil"],
        "assignment": whose and whose["assignment_id"],
        "may_retry": newest and job.status in ("failed", "cancelled"),
    }


@web.post("/api/ai-queue/{job_id}/retry")
async def retry(request: Request, _teacher: session.Teacher, job_id: UUID) -> JSONResponse:
    session.refuse_other_sites(request)
    new = await jobs.retry(request.app.state.pool, job_id)
    return JSONResponse({"ok": True, "job_id": str(new)})


@web.post("/api/marking/process-queue")
async def process_queue(request: Request, _driver: session.Driver) -> Response:
    """Work on what is due for a while: for a clock that calls now and then, where no worker stands.

    The same as Penstock's own call, under the app's own secret. It starts the next one itself.
    """
    token = drive_call.make_token(request.app.state.roots, jobs.QUEUE)
    inside = httpx.ASGITransport(app=penstock, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=inside, base_url="http://inside", timeout=CALL_SECONDS
    ) as client:
        told = await client.post(
            f"/v1/queues/{jobs.QUEUE}/process", headers={"Authorization": f"Bearer {token}"}
        )
    return Response(told.content, told.status_code, media_type=told.headers["content-type"])


@web.post("/api/function/{order}")
async def tell_function(request: Request, _teacher: session.Teacher, order: str) -> JSONResponse:
    session.refuse_other_sites(request)
    await switch.tell(order)
    return JSONResponse({"ok": True, "there": await switch.is_there()})


# --- pages ----------------------------------------------------------------------------------------


@web.get(HOME)
async def home() -> RedirectResponse:
    return RedirectResponse("/results", 303)


@web.get("/sign-in")
async def sign_in(request: Request, code: str = "") -> Response:
    if not session.is_code(code):
        return HTMLResponse(pages.not_the_teacher(), 401)
    # Redirect to the address without the code, so that no history contains it.
    response = RedirectResponse("/results", 303)
    session.sign_in(response, secure=request.url.scheme == "https")
    return response


@web.get("/results")
async def results(request: Request) -> Response:
    if not session.is_signed_in(request):
        return HTMLResponse(pages.not_the_teacher(), 401)
    async with request.app.state.pool.acquire() as conn:
        return HTMLResponse(pages.results(await store.count_marked(conn)))


@web.get("/results/assignments/{assignment}")
async def results_of(request: Request, assignment: str) -> Response:
    if not session.is_signed_in(request):
        return HTMLResponse(pages.not_the_teacher(), 401)
    _find(assignment)
    return HTMLResponse(pages.assignment(assignment))


@web.get("/ai-queue")
async def queue_page(request: Request) -> Response:
    if not session.is_signed_in(request):
        return HTMLResponse(pages.not_the_teacher(), 401)
    return HTMLResponse(pages.queue())


# --- for all of them ------------------------------------------------------------------------------


@web.exception_handler(Wrong)
async def answer_wrong(request: Request, error: Wrong) -> Response:
    """Answer scripts with JSON and people with a page."""
    if request.url.path.startswith(API):
        return answer(error.status, error.sentence, error.field)
    return HTMLResponse(pages.not_there(error.sentence), error.status)


@web.exception_handler(Refused)
async def answer_refused(_request: Request, error: Refused) -> JSONResponse:
    return answer(error.status, f"{error.message}.", error.field)


@web.exception_handler(RequestValidationError)
async def answer_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    # Only ids in addresses are validated there: an invalid id is an unknown one.
    return answer(404, "There is no such thing here.", str(error.errors()[0]["loc"][-1]))


@web.exception_handler(HTTPException)
async def answer_http(_request: Request, error: HTTPException) -> JSONResponse:
    headers = dict(error.headers or {})
    return answer(error.status_code, "There is no such thing here.", headers=headers)


def is_penstocks(path: str) -> bool:
    return path != HOME and not path.startswith(OURS)


def is_dashboards(path: str) -> bool:
    return path.startswith(DASHBOARD)


web.add_middleware(Missing, style="/assets/marking.css", link="To the results", keeps=is_dashboards)
web.add_middleware(Protect, sorry=lambda: answer(500, WENT_WRONG), is_theirs=is_penstocks)
# Last: all other paths are Penstock's. Functions call back to /v1/callbacks.
web.mount("", penstock)
