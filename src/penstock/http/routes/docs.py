"""`/docs`: the OpenAPI document as one plain page, without a script or anything from elsewhere."""

import json
from collections import defaultdict
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from penstock.http.middleware.security_headers import NOTHING_RUNS
from penstock.http.routing import Routes
from penstock.http.schemas.openapi import describe

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


@routes.add("GET", "/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(render(describe(request.app)), headers=_HEADERS)


async def document(request: Request) -> Response:
    """`/openapi.json`; below an app that has mounted this one it says where."""
    found = describe(request.app)
    if root := request.scope.get("root_path"):
        found = {**found, "servers": [{"url": root}]}
    return JSONResponse(found)


def render(document: dict[str, Any]) -> str:
    """The page."""
    schemas = document["components"]["schemas"]
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag[tag].append(_operation(path, method, operation, schemas))
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


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [_paragraphs(operation.get("description", ""))]
    if parameters := operation.get("parameters"):
        parts.append(
            _table(
                [
                    f"<code>{escape(one['name'])}</code>",
                    one["in"],
                    _type(one["schema"]),
                    _words(one.get("description", "")),
                ]
                for one in parameters
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
    return [one["schema"] for one in response.get("content", {}).values() if one.get("schema")]


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
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return escape(", ".join(str(one) for one in schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    said = schema.get("format") or schema.get("type") or "any"
    bounds = [
        f"{sign} {schema[key]:,.15g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
        )
        if key in schema
    ]
    return escape(" ".join([said, *bounds]))


def _table(rows: Any) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{body}</table>" if body else ""


def _example(schema: dict[str, Any]) -> str:
    return "".join(
        f"<pre>{escape(json.dumps(one, indent=2, ensure_ascii=False))}</pre>"
        for one in schema.get("examples", ())
    )


def _paragraphs(text: str) -> str:
    parts = (part.strip() for part in text.split("\n\n"))
    return "".join(f"<p>{_words(part)}</p>" for part in parts if part)


def _words(text: str) -> str:
    """A text of ours, with what stands between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if n % 2 else one for n, one in enumerate(parts))
