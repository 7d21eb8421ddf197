"""The OpenAPI document, generated from the routes; `/docs` shows it as a page.

The page is plain HTML, without scripts or files from other servers.
"""

import inspect
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template, Undefined
from markupsafe import Markup, escape
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from penstock.http.middleware.problems import NOTHING_RUNS, Problem, documented
from penstock.http.routing import JSON, Route, Routes

routes = Routes("operation", noun="docs")

_HEADERS = {
    "Content-Security-Policy": f"{NOTHING_RUNS}; style-src 'unsafe-inline'; base-uri 'none'",
}
_ABOUT = """
Errors are RFC 9457 `application/problem+json` with a stable `code`. Lists take `limit` and
`cursor`, and return `items` and `next_cursor`; unknown parameters are refused. Times are RFC 3339,
durations are numbers of seconds.

Send `Authorization: Bearer KEY`. Keys: `admin` for operators (PENSTOCK_SECRET is one), `app` for a
backend that acts for any account, `account` for one account, `process` to drive queues. For a
browser, `POST /v1/tokens` creates a short token, which is also accepted as `?token=`.
"""
_ANYBODY = (500, 503)
_WITH_KEY = (401, 403, 429)
_LOCATIONS = ("path", "query", "header")


def describe(app: Starlette) -> dict[str, Any]:
    """Return the document; it is generated at the first call and then cached."""
    if not hasattr(app.state, "document"):
        routes = [each for each in app.routes if isinstance(each, Route) and each.described.summary]
        app.state.document = _document(routes)
    document: dict[str, Any] = app.state.document
    return document


def _document(routes: Sequence[Route]) -> dict[str, Any]:
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Problem, "validation")]
    for route in routes:
        sent = [route.parameters, *route.described.models, *_form(route)]
        models += [(model, "validation") for model in sent]
        if route.described.answer is not None:
            models.append((route.described.answer, "serialization"))
    refs, definitions = models_json_schema(models, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = definitions["$defs"]
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
    """The schema of a body that is parsed before the function is called."""
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
            _parameter(name, location, parameters)
            for location in _LOCATIONS
            for name, where in route.locations.items()
            if where == location
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


def _parameter(name: str, location: str, parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {
        key: value
        for key, value in parameters["properties"][name].items()
        if (key, value) != ("default", None)
    }
    described = {
        "name": name,
        "in": location,
        "required": name in parameters.get("required", ()),
        "schema": schema,
    }
    return described | ({"description": schema["description"]} if "description" in schema else {})


def _responses(route: Route, refs: Any) -> dict[str, Any]:
    """Return a route's answers, its own refusals and those of all routes like it."""
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
    return {str(status): each for status, each in responses.items()}


@routes.add("GET", "/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(render(describe(request.app)), headers=_HEADERS)


async def document(request: Request) -> Response:
    """Answer `/openapi.json`; if another app has mounted this one, it names the base path."""
    description = describe(request.app)
    if root := request.scope.get("root_path"):
        description = {**description, "servers": [{"url": root}]}
    return JSONResponse(description)


def render(document: dict[str, Any]) -> str:
    """Render the document as a page."""
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag[operation["tags"][0]].append((path, method, operation))
    schemas = document["components"]["schemas"]
    return _page().render(document=document, by_tag=by_tag, schemas=schemas)


@cache
def _page() -> Template:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters["code"] = _code
    environment.filters["example"] = partial(json.dumps, indent=2, ensure_ascii=False)
    return environment.get_template("docs.html")


def _code(text: str | Undefined) -> Markup:
    """Convert a text to HTML, with parts between backticks as code."""
    parts = escape(text or "").split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts)
    )
