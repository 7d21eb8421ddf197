"""The web app: a page to practise on, and two endpoints behind it.

uvicorn essays.app:web --no-access-log     (python examples/essays starts it with all it needs)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response

from essays import jobs, pages, session, store
from essays.errors import Wrong, answer, answer_wrong
from essays.forms import FORM_BYTES, capped, read_draft
from essays.status import opened, shown
from missing import Missing
from penstock import server
from protect import PENSTOCK, Protect

# Only our own page can send it: another site's would first have to ask, and is not allowed to.
HEADER = ("x-requested-with", "practice")
BIGGEST_ID = 2**63 - 1
WENT_WRONG = "Something went wrong on our side. Nothing was stored: try again."

# Where pages watch their jobs; and the operators' dashboard. Standing: this process stays, so it
# also tells `store_result` of ends that no worker brought about, a cancel for one.
penstock = server.api(jobs.app, standing=True)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Start Penstock's API, create our tables, and open our own pool."""
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
web.add_middleware(Missing, style="/static/essays.css", link="Practise writing")
web.add_middleware(Protect, sorry=lambda: answer(500, WENT_WRONG), images="'self' blob:")
web.add_exception_handler(Wrong, answer_wrong)


@web.post("/api/submission-save")
async def submission_save(request: Request, user: session.User) -> JSONResponse:
    """Check, store and queue a submission, and answer before the model has run."""
    session.refuse_other_sites(request)
    if request.headers.get(HEADER[0]) != HEADER[1]:
        raise Wrong(None, f"Send the header {HEADER[0]}: {HEADER[1]}.", status=403)
    draft = await read_draft(request)
    submission = await jobs.submit(request.app.state.pool, user, draft)
    found = await _submission(request, user, submission)
    return JSONResponse({"ok": True, "submission_id": submission, "submission": found})


@web.get("/api/essay-status")
async def essay_status(
    request: Request, user: session.User, number: Annotated[int, Query(alias="id", ge=1)]
) -> JSONResponse:
    """Return the status of a submission of the signed-in person."""
    return JSONResponse({"ok": True, "submission": await _submission(request, user, number)})


async def _submission(request: Request, user: str, number: int) -> dict[str, Any]:
    async with request.app.state.pool.acquire() as conn:
        row = await store.read(conn, user, number) if number <= BIGGEST_ID else None
    if row is None:
        raise Wrong("id", "You have no submission with this id.", status=404)
    # For the owner only, with a token for the job.
    return {**opened(row), "job": jobs.watched(row)}


@web.get("/api/essay-image")
async def essay_image(
    request: Request, user: session.User, number: Annotated[int, Query(alias="id", ge=1)]
) -> Response:
    async with request.app.state.pool.acquire() as conn:
        image = await store.read_image(conn, user, number) if number <= BIGGEST_ID else None
    if image is None:
        raise Wrong("id", "You have no image with this id.", status=404)
    return Response(image.data, media_type=image.type)


@web.get("/")
async def home() -> RedirectResponse:
    return RedirectResponse("/practice", 303)


@web.get("/practice")
async def practice(request: Request) -> Response:
    name = session.signed_in_name(request)
    if name is None:
        return RedirectResponse("/sign-in", 303)
    async with request.app.state.pool.acquire() as conn:
        past = [shown(row) for row in await store.past(conn, name)]
        completed = await store.completed_tasks(conn, name)
    return HTMLResponse(pages.practice(name, past, completed))


@web.get("/sign-in")
async def sign_in_page() -> HTMLResponse:
    return HTMLResponse(pages.sign_in())


@web.post("/sign-in")
async def sign_in(request: Request) -> Response:
    session.refuse_other_sites(request)
    small = capped(request, FORM_BYTES, Wrong("name", "The name is too long.", status=413))
    try:
        async with small.form(max_files=0, max_fields=4) as form:
            name = session.check_name(str(form.get("name", "")))
    except Wrong as wrong:
        return HTMLResponse(pages.sign_in(wrong.sentence), wrong.status)
    response = RedirectResponse("/practice", 303)
    session.sign_in(response, name, secure=request.url.scheme == "https")
    return response


@web.post("/sign-out")
async def sign_out(request: Request) -> Response:
    session.refuse_other_sites(request)
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(session.COOKIE)
    return response


@web.exception_handler(RequestValidationError)
async def answer_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    field = str(first["loc"][-1])
    return answer(422, f"The {field} is wrong: {first['msg']}.", field)


@web.exception_handler(HTTPException)
async def answer_http(_request: Request, error: HTTPException) -> JSONResponse:
    return answer(error.status_code, f"{error.detail}.")
