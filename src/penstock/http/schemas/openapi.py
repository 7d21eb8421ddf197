"""The OpenAPI document, made of the routes: who may call them, what they take and answer."""

import inspect
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.applications import Starlette

from penstock.http.middleware.problems import Problem, documented
from penstock.http.routing import Route
from penstock.http.schemas.body import JSON

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
_PLACES = ("path", "query", "header")


def describe(app: Starlette) -> dict[str, Any]:
    """Made at the first call, then kept."""
    if not hasattr(app.state, "document"):
        routes = [one for one in app.routes if isinstance(one, Route) and one.described.summary]
        app.state.document = _document(routes)
    found: dict[str, Any] = app.state.document
    return found


def _document(routes: Sequence[Route]) -> dict[str, Any]:
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Problem, "validation")]
    for route in routes:
        sent = [route.parameters, *route.described.models, *_form(route)]
        models += [(model, "validation") for model in sent]
        if route.described.answer is not None:
            models.append((route.described.answer, "serialization"))
    refs, found = models_json_schema(models, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = found["$defs"]
    paths: dict[str, Any] = {}
    for route in routes:
        name = refs[route.parameters, "validation"]["$ref"].rpartition("/")[2]
        operation = _operation(route, schemas.pop(name), refs)
        paths.setdefault(route.path_format, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "summary": "The durable queue for AI work",
            "description": _ABOUT.strip(),
            "version": "1",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key, or a token."},
                "token": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


def _form(route: Route) -> list[type[BaseModel]]:
    """The form of a body that the route has read for it."""
    return [] if route.body is None else [route.body[1].shown or route.body[0]]


def _operation(route: Route, parameters: dict[str, Any], refs: Any) -> dict[str, Any]:
    description = inspect.getdoc(route.endpoint)
    if route.caller is not None:
        kinds = [who for who in route.caller.who if who != "token"]
        tokens = " Tokens too." if "token" in route.caller.who else ""
        description = "\n\n".join(filter(None, [description, f"Keys: {', '.join(kinds)}.{tokens}"]))
    operation: dict[str, Any] = {
        "tags": [route.described.tag],
        "summary": route.described.summary,
        "operationId": route.operation_id,
        "responses": _responses(route, refs),
        "security": _security(route),
    }
    if description:
        operation["description"] = description
    if route.locations:
        operation["parameters"] = [
            _parameter(name, place, parameters)
            for place in _PLACES
            for name, where in route.locations.items()
            if where == place
        ]
    if route.described.request_body is not None:
        operation["requestBody"] = route.described.request_body
    elif route.body is not None:
        [form] = _form(route)
        operation["requestBody"] = {
            "required": not route.body[1].empty,
            "content": {JSON: {"schema": refs[form, "validation"]}},
        }
    return operation


def _security(route: Route) -> list[dict[str, Any]]:
    if route.caller is None:
        return []
    return [{"key": []}, *([{"token": []}] if "token" in route.caller.who else [])]


def _parameter(name: str, place: str, parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {
        key: value
        for key, value in parameters["properties"][name].items()
        if (key, value) != ("default", None)
    }
    found = {
        "name": name,
        "in": place,
        "required": name in parameters.get("required", ()),
        "schema": schema,
    }
    return found | ({"description": schema["description"]} if "description" in schema else {})


def _responses(route: Route, refs: Any) -> dict[str, Any]:
    """Its answers, its own refusals and those that any route like it may give."""
    described = route.described
    has_body = route.body is not None or described.request_body is not None
    refusals = (
        *described.refuses,
        *_ANYBODY,
        *(_WITH_KEY if route.caller is not None else ()),
        *((413, 422) if has_body else ()),
        *((422,) if route.locations else ()),
        *((404,) if route.param_convertors else ()),
    )
    form: dict[str, Any] = {}
    if described.answer is not None:
        form["content"] = {JSON: {"schema": refs[described.answer, "serialization"]}}
    usual = {described.status: described.about, **described.also}
    responses = {
        **documented(*refusals),
        **{status: {"description": about, **form} for status, about in usual.items()},
        **described.responses,
    }
    return {str(status): one for status, one in responses.items()}
