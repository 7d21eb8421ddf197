"""The web app: a page for pupils, a page for their teacher, and the API of both.

uvicorn feedback.app:web --no-access-log     (python examples/feedback starts it with the others)
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response

from feedback import jobs, model, pages, pupils, session, store
from feedback.errors import Wrong, answer, answer_wrong
from feedback.forms import capped, read_draft
from feedback.status import shown
from missing import Missing
from penstock import server
from protect import PENSTOCK, Protect

BIGGEST_ID = 2**63 - 1
WENT_WRONG = "Bei uns ist etwas schiefgegangen. Versuch es gleich noch einmal."
AGAIN_SECONDS = 5.0

log = logging.getLogger("uvicorn.error.feedback")

# Penstock's API, with which pages watch their jobs, and the operators' dashboard.
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
        settling = asyncio.create_task(_settling(pool))
        yield
        settling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await settling


async def _settling(pool: asyncpg.Pool) -> None:
    while True:
        try:
            await jobs.keep_settling(pool)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("outcomes cannot be stored for now: %s", type(error).__name__)
            await asyncio.sleep(AGAIN_SECONDS)


# Without FastAPI's own pages, which would be open to everybody.
web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
web.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
web.mount(PENSTOCK, penstock)
web.add_middleware(
    Missing,
    style="/static/feedback.css",
    link="Zu den Aufgaben",
    title="Diese Seite gibt es nicht",
    sentence="Vielleicht ist die Adresse falsch geschrieben, oder die Seite wurde entfernt.",
    lang="de",
)
web.add_middleware(Protect, sorry=lambda: answer(500, WENT_WRONG))
web.add_exception_handler(Wrong, answer_wrong)

# --- pupils ---------------------------------------------------------------------------------------


@web.post("/api/abgaben")
async def hand_in(request: Request, pupil: session.Pupil) -> JSONResponse:
    """Check, store and queue a text, and answer before the model has run."""
    session.refuse_other_sites(request, script=True)
    draft = await read_draft(request)
    number = await jobs.submit(request.app.state.pool, pupil, draft)
    return JSONResponse({"ok": True, "submission": await _submission(request, pupil, number)})


@web.get("/api/abgaben")
async def mine(request: Request, pupil: session.Pupil) -> JSONResponse:
    """Return the pupil's newest submission for each task."""
    async with request.app.state.pool.acquire() as conn:
        rows = await store.latest(conn, pupil)
    return JSONResponse({"ok": True, "submissions": [_shown(row) for row in rows]})


@web.get("/api/abgaben/{number}")
async def one(request: Request, pupil: session.Pupil, number: int) -> JSONResponse:
    return JSONResponse({"ok": True, "submission": await _submission(request, pupil, number)})


async def _submission(request: Request, pupil: str, number: int) -> dict[str, Any]:
    async with request.app.state.pool.acquire() as conn:
        row = await store.read(conn, pupil, number) if 0 < number <= BIGGEST_ID else None
    if row is None:
        raise Wrong("id", "Diese Abgabe gibt es nicht.", status=404)
    return _shown(row)


def _shown(row: store.Row) -> dict[str, Any]:
    """Return a submission for its owner, with a token for its job."""
    return {**shown(row), "job": jobs.watched(row)}


@web.get("/")
async def home() -> RedirectResponse:
    return RedirectResponse("/aufgaben", 303)


@web.get("/aufgaben")
async def tasks(request: Request) -> Response:
    name = session.signed_in(request, "pupil")
    if name is None:
        return RedirectResponse("/anmelden", 303)
    return HTMLResponse(pages.tasks(name))


@web.get("/anmelden")
async def sign_in_page() -> HTMLResponse:
    return HTMLResponse(pages.sign_in())


@web.post("/anmelden")
async def sign_in(request: Request) -> Response:
    session.refuse_other_sites(request, script=False)
    try:
        async with capped(request, "Dein Name ist zu lang.").form(max_files=0) as form:
            name = session.check_name(str(form.get("name", "")))
    except Wrong as wrong:
        return HTMLResponse(pages.sign_in(wrong.sentence), wrong.status)
    response = RedirectResponse("/aufgaben", 303)
    session.sign_in(response, "pupil", name, secure=request.url.scheme == "https")
    return response


@web.post("/abmelden")
async def sign_out(request: Request) -> Response:
    session.refuse_other_sites(request, script=False)
    response = RedirectResponse("/anmelden", 303)
    response.delete_cookie(session.COOKIES["pupil"])
    return response


# --- the teacher ----------------------------------------------------------------------------------


@web.get("/klasse")
async def class_page(request: Request, code: str = "") -> Response:
    if session.is_code(code):
        # Redirect to the address without the code, so that no history contains it.
        response: Response = RedirectResponse("/klasse", 303)
        session.sign_in(response, "teacher", "Lehrkraft", secure=request.url.scheme == "https")
        return response
    if session.signed_in(request, "teacher") is None:
        return HTMLResponse(pages.not_the_teacher(), 401)
    return HTMLResponse(pages.of_class())


@web.get("/api/klasse")
async def class_now(request: Request, _teacher: session.Teacher) -> JSONResponse:
    """Return all submissions without texts, and the state of the model and the queue."""
    async with request.app.state.pool.acquire() as conn:
        rows = await store.of_class(conn)
    kept = ("id", "feedback_status", "queue_position", "wait_seconds", "held_up", "retry_count")
    found = [
        {"pupil": row["pupil"], "simulated": row["simulated"], "task": row["task"]}
        | {name: value for name, value in shown(row).items() if name in kept}
        for row in rows
    ]
    return JSONResponse(
        {
            "ok": True,
            "queue_on": jobs.QUEUE_ON,
            "model": {"there": await model.is_there(), "switch": model.CONTROL_URL is not None},
            "live": jobs.watched_class(),
            "submissions": found,
        }
    )


@web.post("/api/klasse/abgaben")
async def hand_in_all(request: Request, _teacher: session.Teacher) -> JSONResponse:
    """Submit fifty texts in one transaction."""
    session.refuse_other_sites(request, script=True)
    if not jobs.QUEUE_ON:
        raise Wrong(None, "50 auf einmal geht nur, wenn die Warteschlange an ist.", status=409)
    drafts = pupils.class_of_fifty()
    await jobs.submit_all(request.app.state.pool, drafts)
    return JSONResponse({"ok": True, "submitted": len(drafts)})


@web.post("/api/klasse/ki/{state}")
async def switch_model(request: Request, _teacher: session.Teacher, state: str) -> JSONResponse:
    session.refuse_other_sites(request, script=True)
    if state not in ("anhalten", "starten"):
        raise Wrong(None, "Die KI lässt sich anhalten oder starten.", status=404)
    await model.switch(on=state == "starten")
    return JSONResponse({"ok": True, "there": await model.is_there()})


# --- for all of them ------------------------------------------------------------------------------


@web.exception_handler(RequestValidationError)
async def answer_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    return answer(404, "Das gibt es hier nicht.", str(error.errors()[0]["loc"][-1]))


@web.exception_handler(HTTPException)
async def answer_http(_request: Request, error: HTTPException) -> JSONResponse:
    return answer(error.status_code, "Das gibt es hier nicht.")
