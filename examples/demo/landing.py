"""The landing page at /demo: the five systems live, links into them, buttons that break things.

It is for operators who are signed in to the dashboard. Every button is a form with the token of
the session, and works without JavaScript.
"""

from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from demo import words
from demo.about import ABOUT
from demo.children import Child
from demo.readings import DATABASE_UNAVAILABLE, Row
from demo.stage import Stage
from demo.systems import SYSTEMS
from essays import session as essays
from feedback import session as feedback
from marking import session as marking
from penstock.dashboard.frame import (
    ask_to_sign_in,
    came_from_us,
    read_form,
    refuse_form,
    with_headers,
)
from penstock.dashboard.session import Session, sign_in_tokens, signed_in
from penstock.errors import Unavailable
from studio import session as studio

_FOLDER = Path(__file__).parent

_AT_WORK = ("running", "awaiting")
_NOTES = {"circuit_open": "paused", "no_worker": "no_worker", "no_handler": "no_worker"}

_templates = Environment(
    loader=FileSystemLoader(_FOLDER / "pages"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def routes(stage: Stage) -> list[BaseRoute]:
    landing = Landing(stage)
    return [
        Route("/demo", with_headers(landing.page), methods=["GET"]),
        Route("/demo/now", with_headers(landing.now), methods=["GET"]),
        Route("/demo/enter/{system}", with_headers(landing.enter), methods=["GET"]),
        Route("/demo/{part}/{order}", with_headers(landing.order), methods=["POST"]),
        Mount("/demo/static", StaticFiles(directory=_FOLDER / "static")),
    ]


class Landing:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._orders = {
            ("model", "stop"): stage.models.stop,
            ("model", "start"): stage.models.start,
            ("worker", "kill"): stage.worker.kill,
        }

    async def page(self, request: Request) -> Response:
        session = await signed_in(request)
        if session is None:
            return ask_to_sign_in(request)
        self._stage.people.notice()
        language = _language(request)
        text = _templates.get_template("landing.html").render(
            say=words.PAGE[language],
            language=language,
            other=next(one for one in words.LANGUAGES if one != language),
            systems=[(one.key, ABOUT[language][one.key]) for one in SYSTEMS],
            now=await self._now(language),
            form_token=sign_in_tokens(request).form_tokens(session.nonce)[0],
        )
        return HTMLResponse(text)

    async def now(self, request: Request) -> Response:
        """The figures that an open page polls; a poll does not count as attention."""
        if await signed_in(request) is None:
            return JSONResponse({}, HTTPStatus.UNAUTHORIZED)
        return JSONResponse(await self._now(_language(request)))

    async def enter(self, request: Request) -> Response:
        """Redirect into a system, signed in there; cookies count for a host with all its ports."""
        if await signed_in(request) is None:
            return ask_to_sign_in(request)
        key = request.path_params["system"]
        if key not in self._stage.ports:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        self._stage.people.notice()
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        path = _PATHS[key]
        response = RedirectResponse(f"http://{host}:{self._stage.ports[key]}{path}", 303)
        _sign_in(key, response)
        return response

    async def order(self, request: Request) -> Response:
        """Stop, start or kill a part; redirect to the page, or return the figures to a script."""
        session = await signed_in(request)
        if session is None:
            return ask_to_sign_in(request)
        if not await _is_ours(request, session):
            return refuse_form(request)
        order = self._orders.get((request.path_params["part"], request.path_params["order"]))
        if order is None:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        self._stage.people.notice()
        order()
        language = _language(request)
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(await self._now(language))
        return RedirectResponse(f"../../demo?lang={language}", 303)

    async def _now(self, language: str) -> dict[str, Any]:
        try:
            found = await self._stage.readings.now()
        except DATABASE_UNAVAILABLE as error:
            raise Unavailable("the database does not answer") from error
        return {
            "systems": {one.key: self._figures(found.get(one.queue), language) for one in SYSTEMS},
            "model": _part(self._stage.models, language),
            "worker": _part(self._stage.worker, language),
            "story": self._stage.story.read(language),
            "idle": self._stage.people.is_idle,
        }

    def _figures(self, row: Row | None, language: str) -> dict[str, Any]:
        if row is None:  # not declared yet: the worker is starting
            return {"waiting": 0, "running": 0, "done": 0, "note": "", "newest": [], "job": None}
        jobs, ended, newest = row["jobs"] or {}, row["ended"] or {}, row["newest"] or []
        note = _NOTES.get(row["waiting_for"] or "")
        return {
            "waiting": jobs.get("queued", 0) + jobs.get("scheduled", 0),
            "running": jobs.get("running", 0) + jobs.get("awaiting", 0),
            "done": ended.get("ended", 0),
            "note": words.PAGE[language][note] if note else "",
            # The oldest first, as they are drawn.
            "newest": [{"id": one["id"], "status": one["status"]} for one in reversed(newest)],
            "job": self._watched(_most_telling(newest)) if newest else None,
        }

    def _watched(self, job: Row) -> dict[str, Any]:
        """Return what <penstock-job> needs, and the job's kind and account."""
        return {
            "name": " · ".join(filter(None, (job["kind"], job["account"]))),
            "is_at_work": job["status"] in _AT_WORK,
            "src": f"v1/jobs/{job['id']}",
            "token": self._stage.app.token(job=job["id"], ttl="1h"),
        }


def _most_telling(newest: list[Row]) -> Row:
    """Return the newest running job, otherwise the newest waiting one, otherwise the newest."""
    at_work = [one for one in newest if one["status"] in _AT_WORK]
    waiting = [one for one in newest if one["finished_at"] is None]
    return next(iter([*at_work, *waiting, *newest]))


def _part(child: Child, language: str) -> dict[str, Any]:
    say = words.PAGE[language]
    if not child.is_wanted:
        return {"state": "off", "text": say["off"]}
    if child.pid is None:
        return {"state": "starting", "text": say["starting"]}
    return {"state": "on", "text": say["on"].format(pid=child.pid)}


def _language(request: Request) -> str:
    return words.choose(
        request.query_params.get("lang"), request.headers.get("accept-language", "")
    )


async def _is_ours(request: Request, session: Session) -> bool:
    form = await read_form(request)
    given = str(form.get("form_token", ""))
    return came_from_us(request) and sign_in_tokens(request).fits(session.nonce, given)


_PATHS = {
    "marking": "/results",
    "essays": "/practice",
    "scanner": "/",
    "feedback": "/klasse",
    "studio": "/",
}


def _sign_in(key: str, response: Response) -> None:
    """Sign in as the user with the most rights, by the system's own function."""
    match key:
        case "marking":
            marking.sign_in(response, secure=False)
        case "essays":
            essays.sign_in(response, "Ana", secure=False)
        case "feedback":
            feedback.sign_in(response, "teacher", "Lehrkraft", secure=False)
        case "studio":
            studio.sign_in(response, "customer", "customer-2", secure=False)
            studio.sign_in(response, "operator", "operator", secure=False)
