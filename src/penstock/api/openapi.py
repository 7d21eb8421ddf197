"""The OpenAPI document.

It has what the framework sees of the routes, and what it does not: bodies that they read
themselves, who may call them, and the refusals that any of them may give.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from penstock.api.body import DOCUMENTED
from penstock.api.problems import Problem, documented

_ABOUT = """
Errors are RFC 9457 `application/problem+json` with a stable `code`. Lists take `limit` and
`cursor` and answer `items` and `next_cursor`; a parameter that they do not know is refused. Times
are RFC 3339, lengths numbers of seconds.

Send `Authorization: Bearer KEY`. Keys: `admin` for operators (PENSTOCK_SECRET is one), `app` for a
backend that acts for any account, `account` for one account, `process` to drive queues. A browser
gets a short token by `POST /v1/tokens`, which is also taken as `?token=`.
"""
_ANYBODY = (500, 503)
_WITH_KEY = (401, 403, 429)


def describe(app: FastAPI) -> dict[str, Any]:
    """Made at the first call, then kept."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=_ABOUT.strip(),
            routes=app.routes,
        )
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key, or a token."},
            "token": {"type": "apiKey", "in": "query", "name": "token"},
        }
        _add_schema(schemas, Problem)
        for model in DOCUMENTED.values():
            _add_schema(schemas, model)
        for route, operation in _operations(app, document):
            operation["operationId"] = _operation_id(route)
            _secure(route, operation)
        # The framework's own form of a refusal, which no route answers with.
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        app.openapi_schema = document
    return app.openapi_schema


def _operations(
    app: FastAPI, document: dict[str, Any]
) -> Iterator[tuple[APIRoute, dict[str, Any]]]:
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                yield route, document["paths"][route.path_format][method.lower()]


def _secure(route: APIRoute, operation: dict[str, Any]) -> None:
    """Who may call it, and what else it may answer."""
    who = _who(route.dependant)
    common = documented(*_ANYBODY)
    operation["security"] = []
    if who is not None:
        common |= documented(*_WITH_KEY)
        operation["security"] = [{"key": []}, *([{"token": []}] if "token" in who else [])]
        kinds = [one for one in who if one != "token"]
        said = f"Keys: {', '.join(kinds)}." + (" Tokens too." if "token" in who else "")
        operation["description"] = "\n\n".join(filter(None, [operation.get("description"), said]))
    if "requestBody" in operation:
        common |= documented(413, 422)
    if "{" in route.path:
        common |= documented(404)
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        responses["422"] = documented(422)[422]
    for status, response in common.items():
        responses.setdefault(str(status), response)


def _operation_id(route: APIRoute) -> str:
    """`jobs_submit`: what clients that are made from the document call it."""
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.name}"


def _who(dependant: Dependant) -> tuple[str, ...] | None:
    """Those that `allowed` was told, wherever it stands among what a route depends on."""
    found: tuple[str, ...] | None = getattr(dependant.call, "who", None)
    if found is not None:
        return found
    for one in dependant.dependencies:
        found = _who(one)
        if found is not None:
            return found
    return None


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    found = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(found.pop("$defs", {}))
    schemas[model.__name__] = found
