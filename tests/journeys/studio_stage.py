"""A stage for the studio's page: what it asks and hears is written here, order by order."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response, StreamingResponse

import penstock
from journeys.browser import served
from journeys.studio_site import FOLDER, FREE
from penstock.models.simulated.content.scenes import picture

STATIC = FOLDER / "static"
COMPONENT = Path(penstock.__file__).parent / "dashboard" / "static"

JOB = "01900000-0000-7000-8000-000000000001"
BATCH = "01900000-0000-7000-8000-000000000002"
WORDS = {
    "queued": "queued",
    "generating": "running",
    "completed": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
LIVE = ("queued", "generating")
ACCOUNT = {
    "plan": "free",
    "balance": 6,
    "running": 1,
    "queued": 0,
    "concurrency": 1,
    "per_hour": 10,
    "priority": 50,
    "submitted_last_hour": 3,
    "next_submit_at": None,
}


def order(status: str, message: str, *states: str, **more: Any) -> dict[str, Any]:
    """Four images, as the app shows them; those that are not named wait."""
    pictures: list[dict[str, Any]] = []
    for number in range(1, 5):
        state = states[number - 1] if number <= len(states) else "waiting"
        one: dict[str, Any] = {"number": number, "state": state}
        if state == "ready":
            one["url"] = f"/api/images/{JOB}/{number}.png"
        elif state in ("failed", "refunded"):
            one |= {"why": "refused", "credits": 1}
        pictures.append(one)
    return {
        "job_id": JOB,
        "job": {"src": f"/penstock/v1/batches/{BATCH}"} if status in LIVE else None,
        "job_type": "freestyle",
        "prompt": "A <b>lake</b>",
        "images": 4,
        "quality": "standard",
        "jobs": 1,
        "status": status,
        "stopping": False,
        "note": "",
        "message": message,
        "position": None,
        "eta_seconds": None,
        "ready": states.count("ready"),
        "pictures": pictures,
        "credits": {"reserved": 4, "charged": 0, "refunded": 0},
        "created_at": "2026-01-01T12:00:00+00:00",
        "completed_at": None,
        **more,
    }


WAITS = order("queued", "You are #3 in the queue.", position=3, eta_seconds=12)
DRAWS = order("generating", "Generating your images…", "drawing")
SOME = order("generating", "Generating your images… 1 of 4 so far.", "ready", "failed", "drawing")
PART = order(
    "completed",
    "3 of 4 images are ready. 1 credit was refunded.",
    *("ready", "refunded", "ready", "ready"),
    credits={"reserved": 4, "charged": 3, "refunded": 1},
)
FAILED = order(
    "failed",
    "Not one image came. 4 credits were refunded.",
    *["refunded"] * 4,
    credits={"reserved": 4, "charged": 0, "refunded": 4},
)
CANCELLED = order("cancelled", "Cancelled. 4 credits were refunded.", *["refunded"] * 4)

GONE: dict[str, Any] = {}


class Stage:
    """A server with the real page, and an order that is as the test says; None: nobody answers."""

    def __init__(self, page: httpx.Response, now: dict[str, Any] | None) -> None:
        self._page = page
        self.now = now
        self.is_empty = now is None
        self.questions = 0
        self.listening: dict[str, asyncio.Queue[str | None]] = {}
        """Who listens, by the id of what: the account, the order."""
        self.orders: list[tuple[Any, str | None]] = []
        self.told: Response = JSONResponse({})
        """What is answered to an order."""
        self.cancelled: Response = JSONResponse({})
        self.accounts: set[str | None] = set()
        self.images: list[int] = []
        self.has = ACCOUNT
        self.late: asyncio.Event | None = None
        self._version = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=STATIC))
        app.mount("/penstock/static", StaticFiles(directory=COMPONENT))
        app.add_api_route("/penstock/v1/accounts/{name}/events", self.listen)
        app.add_api_route("/penstock/v1/batches/{name}/events", self.listen)
        app.add_api_route("/penstock/v1/batches/{name}", self.read_batch)
        app.add_api_route("/penstock/v1/batches/{name}/cancel", self.cancel, methods=["POST"])
        app.add_api_route("/", self.show, response_class=HTMLResponse)
        app.add_api_route("/api/history", self.history)
        app.add_api_route("/api/balance", self.balance)
        app.add_api_route("/api/generations/{job}", self.answer)
        app.add_api_route("/api/images/{job}/{name}", self.image)
        app.add_api_route("/api/enqueue-generation", self.take_order, methods=["POST"])
        return app

    # --- Penstock's ------------------------------------------------------------------------------

    async def tell(self, now: dict[str, Any] | None) -> None:
        """The order is so now, and who listens hears of it."""
        self.now, self.is_empty = now, False
        self._version += 1
        for name in list(self.listening):
            self._send(name)

    def _send(self, name: str) -> None:
        event, data = ("batch", self.batch()) if name == BATCH else ("job", self.job())
        self.listening[name].put_nowait(f"event: {event}\ndata: {json.dumps(data)}\n\n")

    def job(self, **more: Any) -> dict[str, Any]:
        now = self.now or {}
        return {
            "id": JOB,
            "batch": BATCH,
            "status": WORDS.get(now.get("status", ""), "running"),
            "attempt": 1,
            # Something that is news, whatever is told.
            "progress": {"done": self._version, "total": 100},
            "position": now.get("position"),
            "eta_seconds": now.get("eta_seconds"),
            "waiting_for": None,
            "cancel_requested": False,
            "staleness": None,
            "error": None,
            "started_at": "2026-01-01T12:00:00Z",
            "version": self._version,
            **more,
        }

    def batch(self, **more: Any) -> dict[str, Any]:
        job = self.job(**more)
        return {
            "id": BATCH,
            "total": 1,
            **{name: int(job["status"] == name) for name in WORDS.values()},
            "status": job["status"],
            "progress": {"done": 0, "total": 1, "partial": [None]},
            "credits": None,
            "position": job["position"],
            "eta_seconds": job["eta_seconds"],
            "items": [job],
        }

    async def listen(self, name: str) -> Response:
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.listening[name] = queue
        if not self.is_empty:
            self._send(name)

        async def events() -> AsyncIterator[str]:
            try:
                yield "retry: 100\n\n"
                while (event := await queue.get()) is not None:
                    yield event
            finally:
                if self.listening.get(name) is queue:
                    del self.listening[name]

        return StreamingResponse(events(), media_type="text/event-stream")

    async def read_batch(self) -> JSONResponse:
        return JSONResponse(self.batch())

    async def cancel(self) -> Response:
        return self.cancelled

    # --- the app's -------------------------------------------------------------------------------

    async def show(self) -> HTMLResponse:
        # What the app forbids its page stays forbidden.
        policy = self._page.headers["content-security-policy"]
        return HTMLResponse(self._page.text, headers={"content-security-policy": policy})

    async def history(self, request: Request) -> JSONResponse:
        self._asked(request)
        live = {"src": f"/penstock/v1/accounts/{FREE}", "token": "pt_1"}
        items = [] if self.now is None else [self.now]
        found = {"ok": True, "account": self.has, "items": items, "before": None, "live": live}
        if (late := self.late) is not None:
            self.late = None
            await late.wait()
        return JSONResponse(found)

    async def balance(self, request: Request) -> JSONResponse:
        self._asked(request)
        return JSONResponse({"ok": True, "account": self.has})

    async def answer(self, request: Request) -> JSONResponse:
        self._asked(request)
        if self.now is None:
            return JSONResponse({"ok": False, "error": "Bad gateway"}, 502)
        if self.now == GONE:
            return JSONResponse({"ok": False, "error": "You have no order with this id."}, 404)
        return JSONResponse({"ok": True, "account": self.has, "generation": self.now})

    def _asked(self, request: Request) -> None:
        self.questions += 1
        self.accounts.add(request.headers.get("x-account"))

    async def image(self) -> Response:
        """With the statuses that were asked for first."""
        status = self.images.pop(0) if self.images else 200
        drawn = picture(Random(1), 64, 64) if status == 200 else b""
        return Response(drawn, status, media_type="image/png")

    async def take_order(self, request: Request) -> Response:
        sent = json.loads(await request.body())
        self.orders.append((sent, request.headers.get("idempotency-key")))
        return self.told

    def _leave(self) -> None:
        for queue in self.listening.values():
            queue.put_nowait(None)

    def running(self) -> AbstractAsyncContextManager[int]:
        return served(self.app(), self._leave)
