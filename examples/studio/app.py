"""The web app: a page for customers, what it asks for, the operator's two buttons; and Penstock's
own API and component under /penstock.

uvicorn studio.app:web --no-access-log     (python examples/studio starts it with all it needs)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.status import HTTP_405_METHOD_NOT_ALLOWED
from starlette.types import ASGIApp, Receive, Scope, Send

from missing import Missing
from penstock import InsufficientCredits, Refused, server
from protect import PENSTOCK, Protect
from studio import customers, jobs, model, pages, session, store
from studio.errors import Wrong, answer, answer_refused, answer_too_dear
from studio.forms import (
    read_before,
    read_customer,
    read_fields,
    read_key,
    read_order,
    read_reference,
)
from studio.status import shown, watched

HISTORY_SHOWN = 12
BOUGHT_CREDITS = 10
# Of one picture; what is wrong with the model itself is waited for, and costs nobody a picture.
FAULTS = {"broken": "truncated_json", "refused": "refusal"}
API = "/api/"
ANOTHER = "You are signed in as another customer in this browser now."
WENT_WRONG = "Something went wrong here. Look at your orders before you try again."

penstock = server.api(jobs.app)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Start Penstock's API, create our tables and the customers."""
    async with (
        server.running(penstock),
        asyncpg.create_pool(await jobs.app.dsn(), min_size=1, max_size=10) as pool,
    ):
        async with pool.acquire() as conn:
            await store.create_tables(conn)
        await customers.seed(jobs.app)
        web.state.pool = pool
        yield


# Without FastAPI's own pages, which would be open to everybody.
web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
web.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
web.mount(PENSTOCK, penstock)
web.add_exception_handler(Refused, answer_refused)

# --- customers ------------------------------------------------------------------------------------


@web.post("/api/enqueue-generation")
async def enqueue_generation(request: Request, account: session.Account) -> JSONResponse:
    """Check an order, reserve the credits, queue it, and answer before the model has run."""
    session.refuse_other_sites(request, script=True)
    order = await read_order(request)
    try:
        told = await jobs.enqueue(request.app.state.pool, account, order, read_key(request))
    except InsufficientCredits as error:
        return answer_too_dear(
            error,
            fewer=order.images > 1,
            plainer=order.quality == "high",
            operator=session.signed_in(request, "operator") is not None,
        )
    job = {"src": watched(told["batch"]), "token": _token(account)}
    return JSONResponse({"ok": True, **told, "job": job}, 201)


@web.get("/api/generations/{job_id}")
async def generation(request: Request, account: session.Account, job_id: UUID) -> JSONResponse:
    """Return an order with its customer's balance at the same moment."""
    return JSONResponse(await _generation(request, account, job_id))


@web.post("/api/generations/{job_id}/cancel")
async def cancel(request: Request, account: session.Account, job_id: UUID) -> JSONResponse:
    """Refund waiting jobs at once; stop running ones, which charge for delivered pictures."""
    session.refuse_other_sites(request, script=True)
    async with request.app.state.pool.acquire() as conn:
        batch = await store.batch_of(conn, account, job_id)
    if batch is None:
        raise _unknown()
    await jobs.app.batch(batch).cancel()
    return JSONResponse(await _generation(request, account, job_id))


@web.get("/api/history")
async def history(request: Request, account: session.Account) -> JSONResponse:
    """Return a customer's orders, the newest first, including unfinished ones."""
    before = read_before(request)
    async with store.looking(request.app.state.pool) as conn:
        rows = await store.latest(conn, account, HISTORY_SHOWN + 1, before)
        has = await store.read_account(conn, account)
    found = [shown(row) for row in rows[:HISTORY_SHOWN]]
    older = found[-1]["job_id"] if len(rows) > HISTORY_SHOWN else None
    live = {"src": f"{PENSTOCK}/v1/accounts/{account}", "token": _token(account)}
    told = {"account": _account(has), "items": found, "before": older, "live": live}
    return JSONResponse({"ok": True, **told})


@web.get("/api/balance")
async def balance(request: Request, account: session.Account) -> JSONResponse:
    async with store.looking(request.app.state.pool) as conn:
        has = await store.read_account(conn, account)
    return JSONResponse({"ok": True, "account": _account(has)})


@web.get("/api/images/{job_id}/{number}.png")
async def image(request: Request, account: session.Account, job_id: UUID, number: int) -> Response:
    async with request.app.state.pool.acquire() as conn:
        png = await store.read_image(conn, account, job_id, number) if 0 < number < 100 else None
    if png is None:
        raise Wrong("number", "You have no such image.", status=404)
    return Response(png, media_type="image/png")


async def _generation(request: Request, account: str, job_id: UUID) -> dict[str, Any]:
    async with store.looking(request.app.state.pool) as conn:
        row = await store.read(conn, account, job_id)
        if row is None:
            raise _unknown()
        has = await store.read_account(conn, account)
    return {"ok": True, "generation": shown(row), "account": _account(has)}


def _token(account: str) -> str:
    """Return a token for this customer's data, valid for an hour."""
    return jobs.app.token(account=account, ttl="1h", allow=["read", "cancel"])


def _unknown() -> Wrong:
    return Wrong("job_id", "You have no order with this id.", status=404)


def _account(has: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in has.items() if name not in ("id", "created_at")}


@web.get("/")
async def studio(request: Request) -> Response:
    account = session.signed_in(request, "customer")
    if account not in customers.CUSTOMERS:
        return RedirectResponse("/sign-in", 303)
    operator = session.signed_in(request, "operator") is not None
    return HTMLResponse(pages.studio(account, operator=operator))


@web.get("/sign-in")
async def sign_in_page() -> HTMLResponse:
    return HTMLResponse(pages.sign_in())


@web.post("/sign-in")
async def sign_in(request: Request) -> Response:
    session.refuse_other_sites(request, script=False)
    account = session.check_customer(await read_customer(request))
    response = RedirectResponse("/", 303)
    session.sign_in(response, "customer", account, secure=request.url.scheme == "https")
    return response


@web.post("/sign-out")
async def sign_out(request: Request) -> Response:
    session.refuse_other_sites(request, script=False)
    response = RedirectResponse("/sign-in", 303)
    session.sign_out(response)
    return response


# --- the operator ---------------------------------------------------------------------------------


@web.get("/operator")
async def operator(request: Request, code: str = "") -> Response:
    if not session.is_code(code):
        raise Wrong("code", "Open this with the link that is printed at the start.", status=401)
    # Redirect to the address without the code, so that no history contains it.
    response = RedirectResponse("/", 303)
    session.sign_in(response, "operator", "operator", secure=request.url.scheme == "https")
    return response


@web.post("/api/operator/credits")
async def buy(
    request: Request, _operator: session.Operator, account: session.Account
) -> JSONResponse:
    """Grant credits once per reference, as a payment provider may report a purchase twice."""
    session.refuse_other_sites(request, script=True)
    reference = await read_reference(request)
    told = await jobs.app.accounts.grant(
        account, BOUGHT_CREDITS, reason="bought", ref=f"purchase:{reference}"
    )
    return JSONResponse({"ok": True, "balance": told["balance"], "replayed": told["replayed"]})


@web.post("/api/operator/fault")
async def fault(request: Request, _operator: session.Operator) -> JSONResponse:
    session.refuse_other_sites(request, script=True)
    kind = (await read_fields(request, ("fault",))).get("fault", "broken")
    if not isinstance(kind, str) or kind not in FAULTS:
        raise Wrong("fault", f"fault may be {' or '.join(FAULTS)}.")
    await model.order_failure(FAULTS[kind])
    return JSONResponse({"ok": True})


# --- for all of them ------------------------------------------------------------------------------


@web.exception_handler(Wrong)
async def answer_wrong(request: Request, error: Wrong) -> Response:
    """Answer scripts with JSON and people with a page."""
    if request.url.path.startswith(API):
        return answer(error.status, error.sentence, error.field)
    return HTMLResponse(pages.sign_in(error.sentence), error.status)


@web.exception_handler(RequestValidationError)
async def answer_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    # Only ids in addresses are validated there: an invalid id is an unknown one.
    return answer(404, "There is no such thing here.", str(error.errors()[0]["loc"][-1]))


@web.exception_handler(HTTPException)
async def answer_http(_request: Request, error: HTTPException) -> JSONResponse:
    if error.status_code == HTTP_405_METHOD_NOT_ALLOWED:
        sentence = "This address is there, but not for a request of this kind."
    else:
        sentence = "There is no such thing here."
    return answer(error.status_code, sentence, headers=dict(error.headers or {}))


class OneCustomer:
    """Refuse requests of a page that was rendered for another customer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        is_call = scope["type"] == "http" and scope["path"].startswith(API)
        if is_call and session.is_another(Request(scope)):
            app = answer(409, ANOTHER, code="another_customer")
        await app(scope, receive, send)


web.add_middleware(OneCustomer)
web.add_middleware(Missing, style="/static/studio.css", link="To the studio")
web.add_middleware(Protect, sorry=lambda: answer(500, WENT_WRONG))
