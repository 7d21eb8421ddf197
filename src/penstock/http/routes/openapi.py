"""The OpenAPI document, made of the routes; `/docs` is the same as a page.

The page is plain HTML, without a script or anything from elsewhere.
"""

import inspect
import json
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

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
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.45 ui-monospace, monospace }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8884; border-radius: 6px }
details { border: 1px solid #8884; border-radius: 6px; margin: .5rem 0; padding: .5rem .75rem }
summary { cursor: pointer }
summary b { display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .75rem .2rem 0 }
h2 { margin-top: 2rem }
@media (max-width: 40rem) {
  tr, td { display: block; padding: 0; overflow-wrap: anywhere }
  tr { margin: .6rem 0 }
}
"""

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
_LOCATIONS = ("path", "query", "header")


def describe(app: Starlette) -> dict[str, Any]:
    """Made at the first call, then kept."""
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
    return {str(status): each for status, each in responses.items()}


@routes.add("GET", "/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(render(describe(request.app)), headers=_HEADERS)


async def document(request: Request) -> Response:
    """`/openapi.json`; below an app that has mounted this one it says where."""
    description = describe(request.app)
    if root := request.scope.get("root_path"):
        description = {**description, "servers": [{"url": root}]}
    return JSONResponse(description)


def render(document: dict[str, Any]) -> str:
    """The page."""
    schemas = document["components"]["schemas"]
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag[tag].append(_operation_html(path, method, operation, schemas))
    parts = [
        f"<h1>{escape(document['info']['title'])}</h1>",
        _paragraphs(document["info"].get("description", "")),
        '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for tag, operations in by_tag.items():
        parts += [f"<h2>{escape(tag.capitalize())}</h2>", *operations]
    parts.append("<h2>Forms</h2>")
    parts += [
        # The name inside: a browser opens what a link leads into, not what it leads to.
        f"<details><summary><code>{escape(name)}</code></summary>"
        f'<div id="{escape(name)}">{_paragraphs(schema.get("description", ""))}'
        f"{_fields(schema)}{_example(schema)}</div></details>"
        for name, schema in sorted(schemas.items())
    ]
    title = f"{escape(document['info']['title'])} API"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><main>{''.join(parts)}</main></html>"
    )


def _operation_html(
    path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> str:
    parts = [_paragraphs(operation.get("description", ""))]
    if parameters := operation.get("parameters"):
        parts.append(
            _table(
                [
                    f"<code>{escape(each['name'])}</code>",
                    each["in"],
                    _type(each["schema"]),
                    _words(each.get("description", "")),
                ]
                for each in parameters
            )
        )
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content.get("schema", {})
        known = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
        parts.append(f"<p>Body, <code>{escape(media)}</code>: {_type(schema)}</p>")
        parts += [_fields(known), _example(known)]
    parts.append(
        _table(
            [status, _words(response["description"]), *map(_type, _forms(response))]
            for status, response in sorted(operation["responses"].items())
        )
    )
    return (
        f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary>{''.join(parts)}</details>"
    )


def _forms(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [each["schema"] for each in response.get("content", {}).values() if each.get("schema")]


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    return _table(
        [
            f"<code>{escape(name)}</code>",
            _type(field),
            "required" if name in required else "",
            _words(field.get("description", "")),
        ]
        for name, field in schema.get("properties", {}).items()
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return escape(", ".join(str(each) for each in schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    form = schema.get("format") or schema.get("type") or "any"
    bounds = [
        f"{sign} {schema[key]:,.15g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
        )
        if key in schema
    ]
    return escape(" ".join([form, *bounds]))


def _table(rows: Any) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{body}</table>" if body else ""


def _example(schema: dict[str, Any]) -> str:
    return "".join(
        f"<pre>{escape(json.dumps(each, indent=2, ensure_ascii=False))}</pre>"
        for each in schema.get("examples", ())
    )


def _paragraphs(text: str) -> str:
    parts = (part.strip() for part in text.split("\n\n"))
    return "".join(f"<p>{_words(part)}</p>" for part in parts if part)


def _words(text: str) -> str:
    """A text of ours, with what stands between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{each}</code>" if n % 2 else each for n, each in enumerate(parts))
