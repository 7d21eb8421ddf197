"""The web app: a form, a page that follows a submission, and the JSON behind both.

uvicorn scanner.app:web     (python examples/scanner starts it together with all it needs)
"""

import logging
import traceback
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
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response
from starlette.status import HTTP_401_UNAUTHORIZED, HTTP_405_METHOD_NOT_ALLOWED

from penstock import Refused
from scanner import admin, jobs, pages, store
from scanner.errors import Wrong, answer
from scanner.forms import read_hours, read_id, read_key, read_package, unknown
from scanner.status import shown

API = "/api/"
WENT_WRONG = "Something went wrong here. Send it again: with the same key it is not taken twice."

log = logging.getLogger("uvicorn.error.scanner")


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Find the database (or start the embedded one), make our table, keep a pool of our own."""
    await jobs.app.engine()
    async with asyncpg.create_pool(await jobs.app.dsn(), min_size=1, max_size=10) as pool:
        async with pool.acquire() as conn:
            await store.create_tables(conn)
        web.state.pool = pool
        yield
    await jobs.app.close()


# Without the pages that FastAPI makes: they would be open to everybody.
web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
web.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))

# --- authors --------------------------------------------------------------------------------------


@web.post("/api/v1/submissions")
async def submit(request: Request) -> JSONResponse:
    """Check, write down, queue, and answer: nothing has been scanned yet."""
    key, package = read_key(request), await read_package(request)
    submission, new = await jobs.submit(request.app.state.pool, package, key)
    return JSONResponse(await _shown(request, submission), 201 if new else 200)


@web.get("/api/v1/submissions/{submission_id}")
async def read(request: Request, submission_id: str) -> JSONResponse:
    return JSONResponse(await _shown(request, read_id(submission_id)))


@web.post("/api/v1/submissions/{submission_id}/again")
async def submit_again(request: Request, submission_id: str) -> JSONResponse:
    """Scan once more what was rejected by our fault; the answer is the new submission."""
    made, new = await jobs.submit_again(request.app.state.pool, read_id(submission_id))
    return JSONResponse(await _shown(request, made), 201 if new else 200)


async def _shown(request: Request, submission: UUID) -> dict[str, Any]:
    # One moment for both, or the job could have ended between them.
    async with (
        request.app.state.pool.acquire() as conn,
        conn.transaction(isolation="repeatable_read", readonly=True),
    ):
        row = await _row(conn, submission)
        job = await store.read_job(conn, row.job_id)
    return shown(row, job)


async def _row(conn: store.Connection, submission: UUID) -> store.Submission:
    row = await store.read(conn, submission)
    if row is None:
        raise unknown()
    return row


@web.get("/")
async def submit_page() -> HTMLResponse:
    return HTMLResponse(pages.submit())


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


# --- for all of them ------------------------------------------------------------------------------


@web.exception_handler(Wrong)
async def answer_wrong(request: Request, error: Wrong) -> Response:
    """To a script as JSON, to a person on a page."""
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


@web.middleware("http")
async def protect(request: Request, go_on: RequestResponseEndpoint) -> Response:
    """Answer also what we did not foresee, and tell browsers what these pages may do."""
    try:
        response = await go_on(request)
    except Exception as error:  # noqa: BLE001  # whatever it is, the page gets a sentence
        # Where, and never what: the words of a database error may quote somebody's package.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.error("%s at %s:%s", type(error).__name__, frame.filename, frame.lineno)  # noqa: TRY400
        response = answer(500, WENT_WRONG)
    response.headers["content-security-policy"] = (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    response.headers["x-content-type-options"] = "nosniff"
    # The address is what opens a submission: it goes to nobody else.
    response.headers["referrer-policy"] = "no-referrer"
    response.headers["cache-control"] = "no-store"
    return response
