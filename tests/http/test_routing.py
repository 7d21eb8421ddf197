"""A route is declared once: the parameters of its function are read, validated and documented."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal
from uuid import UUID

import httpx
import pytest
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from penstock.base.settings import Settings
from penstock.http.middleware import problems
from penstock.http.middleware.limits import Limits
from penstock.http.routes.openapi import describe
from penstock.http.routing import HEADER, Body, Routes, Strict
from support.http import kinds
from support.http.site import Site, problem

ID = "01999999-0000-7000-8000-000000000000"


class Note(Strict):
    text: str


class Kept(BaseModel):
    text: str


routes = Routes("notes")


@routes.add("GET", "/notes/{note_id}", summary="Read", answer=Kept)
async def read(
    note_id: UUID,
    request: Request,
    kind: Literal["long", "short"] | None = None,
    limit: Annotated[int, Field(ge=1, le=9, description="How many.")] = 5,
    trace: Annotated[str | None, HEADER, Field(alias="x-trace")] = None,
) -> dict[str, Any]:
    return {"id": str(note_id), "kind": kind, "limit": limit, "trace": trace, "m": request.method}


@routes.add("POST", "/notes", summary="Write", status=201, answer=Kept, refuses=(409,))
async def write(note: Annotated[Note, Body(code="invalid_note")]) -> dict[str, str]:
    return {"text": note.text}


@routes.add("DELETE", "/notes/{note_id}", summary="Delete", status=204)
async def delete(note_id: UUID) -> None:
    assert note_id


@routes.add("POST", "/notes/{note_id}/touch", summary="Touch")
async def touch(note_id: UUID, note: Annotated[Note, Body(empty=True)]) -> Response:
    return Response(f"{note_id} {note.text}")


def test_a_server_loads_nothing_but_starlette() -> None:
    """FastAPI is for the example apps; an app may use any version of it."""
    asked = "import sys, penstock.cli.serving.serving; print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def app() -> Starlette:
    made = Starlette(routes=[*routes], exception_handlers=problems.HANDLERS)
    made.state.limits = Limits(Settings())
    return made


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://notes.test") as found:
        yield found


async def test_parameters_are_read_by_their_types(client: httpx.AsyncClient) -> None:
    plain = (await client.get(f"/notes/{ID.upper()}")).json()
    assert plain == {"id": ID, "kind": None, "limit": 5, "trace": None, "m": "GET"}
    more = await client.get(f"/notes/{ID}?limit=9&kind=long", headers={"X-Trace": "t"})
    assert more.json() == {"id": ID, "kind": "long", "limit": 9, "trace": "t", "m": "GET"}


async def test_a_header_is_not_read_from_the_query(client: httpx.AsyncClient) -> None:
    found = (await client.get(f"/notes/{ID}?x-trace=t&trace=t&note_id=1")).json()
    assert (found["trace"], found["id"]) == (None, ID)


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/notes/x", 404, "note_id"),
        (f"/notes/{ID}?limit=10", 422, "limit"),
        (f"/notes/{ID}?limit=many", 422, "limit"),
        (f"/notes/{ID}?kind=odd", 422, "kind"),
    ],
)
async def test_a_wrong_parameter_is_named_in_the_refusal(
    client: httpx.AsyncClient, path: str, status: int, field: str
) -> None:
    refusal = problem(
        await client.get(path), status, "not_found" if status == 404 else "invalid_request"
    )
    assert refusal["field"] == field


async def test_a_malformed_id_is_refused_before_the_body_is_read(client: httpx.AsyncClient) -> None:
    problem(await client.post("/notes/x/touch", content=b"{"), 404, "not_found")
    problem(await client.post(f"/notes/{ID}/touch", content=b"{"), 422, "invalid_json")
    problem(await client.post(f"/notes/{ID}/touch"), 422, "invalid_request")


async def test_the_returned_value_is_sent_with_the_status_of_the_route(
    client: httpx.AsyncClient,
) -> None:
    kept = await client.post("/notes", json={"text": "é"})
    assert (kept.status_code, kept.json()) == (201, {"text": "é"})
    assert kept.headers["content-type"] == "application/json"
    problem(await client.post("/notes", json={"text": 1}), 422, "invalid_note")
    gone = await client.delete(f"/notes/{ID}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert "content-type" not in gone.headers
    assert (await client.post(f"/notes/{ID}/touch", json={"text": "a"})).text == f"{ID} a"


async def test_a_refused_method_gets_the_allowed_ones(
    client: httpx.AsyncClient,
) -> None:
    for method in ("HEAD", "PUT"):
        refused = await client.request(method, f"/notes/{ID}")
        assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, GET")


def test_the_document_has_the_same_parameters(app: Starlette) -> None:
    document = describe(app)
    shown = document["paths"]["/notes/{note_id}"]["get"]
    assert [(one["in"], one["name"], one["required"]) for one in shown["parameters"]] == [
        ("path", "note_id", True),
        ("query", "kind", False),
        ("query", "limit", False),
        ("header", "x-trace", False),
    ]
    assert shown["operationId"] == "notes_read"
    limit = shown["parameters"][2]
    assert limit["description"] == "How many."
    assert (limit["schema"]["minimum"], limit["schema"]["maximum"]) == (1, 9)
    assert set(shown["responses"]) == {"200", "404", "422", "500", "503"}
    sent = document["paths"]["/notes"]["post"]
    assert sent["requestBody"]["required"]
    assert set(sent["responses"]) == {"201", "409", "413", "422", "500", "503"}
    assert not document["paths"]["/notes/{note_id}/touch"]["post"]["requestBody"]["required"]
    assert {"Note", "Kept", "Problem"} <= set(document["components"]["schemas"])
    assert "parameters" not in json.dumps(sorted(document["components"]["schemas"]))


async def test_a_token_does_only_what_it_allows(site: Site) -> None:
    """A route needs the permission to read, unless it declares that it cancels."""
    kinds.declare(site)
    made = await site.app_client.post("/v1/jobs", json={"kind": "mark", "payload": {"answer": "a"}})
    job = f"/v1/jobs/{made.json()['id']}"
    for allow, read_status, cancel_status in (("read", 200, 403), ("cancel", 403, 200)):
        asked = {"job": made.json()["id"], "allow": [allow]}
        token = (await site.app_client.post("/v1/tokens", json=asked)).json()["token"]
        client = site.client(token)
        assert (await client.get(job)).status_code == read_status
        assert (await client.post(f"{job}/cancel")).status_code == cancel_status
