"""The OpenAPI document is complete: every route, its callers and its answers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from starlette.routing import Route

from penstock.http.app import ROUTES
from penstock.http.middleware.problems import MEDIA_TYPE
from penstock.http.routes import keys
from penstock.http.schemas import answers, forms
from support.http import kinds
from support.http.site import Site

# The calls of the contract.
CONTRACT = """
POST /v1/jobs · POST /v1/jobs/batch · GET /v1/jobs · GET /v1/jobs/{} · POST /v1/jobs/{}/cancel ·
POST /v1/jobs/{}/retry · GET /v1/batches/{} · POST /v1/batches/{}/cancel ·
GET /v1/batches/{}/events · GET /v1/jobs/{}/events · GET /v1/topics/{}/events ·
GET /v1/accounts/{}/events · POST /v1/callbacks/{} · POST /v1/callbacks ·
POST /v1/queues/{}/process · GET /v1/queues · POST /v1/queues/{}/pause · POST /v1/queues/{}/resume ·
PATCH /v1/queues/{} · POST /v1/accounts · GET /v1/accounts/{} · PATCH /v1/accounts/{} ·
POST /v1/accounts/{}/credits · POST /v1/accounts/{}/deduct · POST /v1/accounts/{}/refund ·
GET /v1/accounts/{}/ledger · POST /v1/uploads · GET /v1/uploads/{} · GET /v1/admin/status ·
GET /v1/admin/metrics · GET /healthz · GET /readyz · GET /metrics · POST /v1/tokens
"""
# These need no key, or have their own authentication.
OPEN = {"/healthz", "/readyz", "/v1/callbacks", "/v1/callbacks/{job_id}"}


@pytest.fixture
async def document(site: Site) -> dict[str, Any]:
    answer = await site.anonymous.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in document["paths"].items():
        for method, operation in found.items():
            yield method.upper(), path, operation


def test_every_call_of_the_contract_is_there(document: dict[str, Any]) -> None:
    found = {f"{method} {re.sub('{.*?}', '{}', path)}" for method, path, _ in operations(document)}
    wanted = {" ".join(one.split()) for one in CONTRACT.split("·")}
    assert wanted <= found, wanted - found


def test_every_route_is_documented(document: dict[str, Any]) -> None:
    shown = {(method, path) for method, path, _ in operations(document)}
    assert {(route.method, route.path_format) for route in ROUTES} - shown == {("GET", "/docs")}


def test_every_route_has_one_entry(site: Site) -> None:
    found = [
        (method, route.path)
        for route in site.api.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    ]
    assert len(found) == len(set(found))


async def test_a_mounted_document_names_its_base_path(site: Site) -> None:
    mounted = await site.client(None, prefix="/tools/queue").get("/openapi.json")
    assert mounted.json()["servers"] == [{"url": "/tools/queue"}]
    assert "servers" not in (await site.anonymous.get("/openapi.json")).json()


def test_every_operation_documents_its_callers_and_refusals(
    document: dict[str, Any],
) -> None:
    seen = set()
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation.get("summary"), where
        assert operation["operationId"] not in seen, where
        seen.add(operation["operationId"])
        responses = operation["responses"]
        assert bool(operation["security"]) == (path not in OPEN), where
        wanted = {"500", "503"} | ({"401", "403", "429"} if operation["security"] else set())
        assert wanted <= set(responses), where
        assert any(status.startswith("2") for status in responses), where
        for status, response in responses.items():
            if status == "416":
                continue  # ranges have no schema
            if status[0] in "45":
                assert response["content"][MEDIA_TYPE]["schema"]["$ref"].endswith("/Problem"), where
            elif status not in ("204", "206", "304"):
                assert response.get("content"), f"{where} {status}"


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    wanted = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert wanted <= set(schemas), wanted - set(schemas)
    assert "HTTPValidationError" not in schemas


@pytest.mark.parametrize(
    "model",
    [
        forms.SubmitJob,
        forms.SubmitBatch,
        keys.CreateToken,
        keys.CreateKey,
        answers.Job,
        answers.SubmittedJob,
    ],
)
def test_examples_match_their_schemas(model: type[BaseModel]) -> None:
    examples = model.model_json_schema()["examples"]
    assert examples
    for one in examples:
        model.model_validate_json(json.dumps(one))


async def test_the_first_example_is_accepted(site: Site) -> None:
    kinds.declare(site)
    [example] = forms.SubmitJob.model_json_schema()["examples"]
    line = site.penstock.queues["line"]
    del site.penstock.kinds["mark"]

    @site.penstock.job(queue=line)
    async def mark(submission_id: str, assignment_id: str, answer: str) -> None: ...

    answer = await site.app_client.post("/v1/jobs", json=example)
    assert answer.status_code == 201, answer.text


async def test_the_page_shows_everything_and_loads_nothing(
    site: Site, document: dict[str, Any]
) -> None:
    page: httpx.Response = await site.anonymous.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in page.text
        assert "__" not in name, "two forms have the same name"
    assert "`" not in page.text, "what is code is shown as code"
    for name, field in document["components"]["schemas"]["SubmitJob"]["properties"].items():
        assert field.get("description"), name
    assert "<script" not in page.text
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page.text)
