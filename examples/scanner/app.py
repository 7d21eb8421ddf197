"""The web app: a form, a page that follows a submission, the JSON behind both; and Penstock's own
API and component under /penstock.

uvicorn scanner.app:web --no-access-log     (python examples/scanner starts it with all it needs)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.status import HTTP_401_UNAUTHORIZED, HTTP_405_METHOD_NOT_ALLOWED

from missing import Missing
from penstock import Refused, server
from protect import PENSTOCK, Protect
from scanner import admin, jobs, pages, store
from scanner.errors import Wrong, answer
from scanner.forms import read_hours, read_id, read_key, read_package, unknown
from scanner.status import ENDED, listed, shown

API = "/api/"
WENT_WRONG = "Something went wrong here. Send it again: with the same key it is not taken twice."

penstock = server.api(jobs.app)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Start Penstock's API, create our table, and open our own pool."""
    async with (
        server.running(penstock),
        asyncpg.create_pool(await jobs.app.dsn(), min_size=1, max_size=10) as pool,
    ):
        async with pool.acquire() as conn:
            await store.create_tables(conn)
        web.state.pool = pool
        yield


# Without FastAPI's own pages, which would be open to everybody.
web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
web.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
web.mount(PENSTOCK, penstock)

# --- authors --------------------------------------------------------------------------------------


@web.post("/api/v1/submissions")
async def submit(request: Request) -> JSONResponse:
    """Check, store and queue a package, and answer before it is scanned."""
    key, package = read_key(request), await read_package(request)
    submission, new = await jobs.submit(request.app.state.pool, package, key)
    return JSONResponse(await _shown(request, submission), 201 if new else 200)


@web.get("/api/v1/submissions/{submission_id}")
async def read(request: Request, submission_id: str) -> JSONResponse:
    return JSONResponse(await _shown(request, read_id(submission_id)))


@web.post("/api/v1/submissions/{submission_id}/again")
async def submit_again(request: Request, submission_id: str) -> JSONResponse:
    """Submit a package again that was rejected by our fault; return the new submission."""
    made, new = await jobs.submit_again(request.app.state.pool, read_id(submission_id))
    return JSONResponse(await _shown(request, made), 201 if new else 200)


async def _shown(request: Request, submission: UUID) -> dict[str, Any]:
    # One snapshot for both, because the job could finish between two reads.
    async with (
        request.app.state.pool.acquire() as conn,
        conn.transaction(isolation="repeatable_read", readonly=True),
    ):
        row = await _row(conn, submission)
        job = await store.read_job(conn, row.job_id)
    told = shown(row, job)
    return {**told, "job": None if told["state"] in ENDED else _watched(row.job_id)}


def _watched(job: UUID) -> dict[str, str]:
    """Return what <penstock-job> needs; the token can only read this job."""
    return {
        "src": f"{PENSTOCK}/v1/jobs/{job}",
        "token": jobs.app.token(job=job, ttl="1h", allow=["read"]),
    }


async def _row(conn: store.Connection, submission: UUID) -> store.Submission:
    row = await store.read(conn, submission)
    if row is None:
        raise unknown()
    return row


@web.get("/")
async def submit_page() -> HTMLResponse:
    return HTMLResponse(pages.submit())


@web.get("/packages")
async def packages_page(request: Request) -> HTMLResponse:
    """Return all packages without their ids, because an id opens a submission."""
    async with request.app.state.pool.acquire() as conn:
        found = [listed(row, job) for row, job in await store.newest(conn)]
    return HTMLResponse(pages.packages(found))


@web.get("/submit/{submission_id}")
async def status_page(request: Request, submission_id: str) -> HTMLResponse:
    async with request.app.state.pool.acquire() as conn:
        row = await _row(conn, read_id(submission_id))
    return HTMLResponse(pages.status(row.id, row.package.name))


# --- the operator ---------------------------------------------------------------------------------


@web.get("/api/v1/admin/queue/metrics")
async def metrics(request: Request, _operator: admin.Operator) -> JSONResponse:
    hours = read_hours(request)
    async with request.app.state.pool.acquire() as conn:
        return JSONResponse(await admin.metrics(conn, jobs.queue.name, hours))


@web.get("/api/v1/admin/queue/status")
async def status(request: Request, _operator: admin.Operator) -> JSONResponse:
    async with request.app.state.pool.acquire() as conn:
        return JSONResponse(await admin.status(conn, jobs.queue.name))


@web.get("/api/v1/admin/submissions")
async def submissions(request: Request, _operator: admin.Operator) -> JSONResponse:
    async with request.app.state.pool.acquire() as conn:
        return JSONResponse(await admin.submissions(conn))


@web.get("/operator")
async def operator_page() -> HTMLResponse:
    """Show the page without data; its script reads them with the operator's secret."""
    return HTMLResponse(pages.operator())


# --- for all of them ------------------------------------------------------------------------------


@web.exception_handler(Wrong)
async def answer_wrong(request: Request, error: Wrong) -> Response:
    """Answer scripts with JSON and people with a page."""
    if not request.url.path.startswith(API):
        return HTMLResponse(pages.wrong(error.sentence), error.status)
    asks = {"WWW-Authenticate": "Bearer"} if error.status == HTTP_401_UNAUTHORIZED else None
    return answer(error.status, error.sentence, error.field, asks)


@web.exception_handler(Refused)
async def answer_refused(_request: Request, error: Refused) -> JSONResponse:
    return answer(error.status, f"{error.message}.", error.field)


@web.exception_handler(HTTPException)
async def answer_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == HTTP_405_METHOD_NOT_ALLOWED:
        sentence = "This address is there, but not for a request of this kind."
    else:
        sentence = "There is no such thing here."
    if not request.url.path.startswith(API):
        return HTMLResponse(pages.wrong(sentence), error.status_code)
    return answer(error.status_code, sentence, headers=dict(error.headers or {}))


# The address opens a submission, so it is sent to no other site.
web.add_middleware(Missing, style="/static/scanner.css", link="Submit a package")
web.add_middleware(Protect, sorry=lambda: answer(500, WENT_WRONG), referrer="no-referrer")
