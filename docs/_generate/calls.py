"""The page of the HTTP API, from its OpenAPI document."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from _generate.page import Undocumented, code, described, page, read_words, sentence, slug, table
from _generate.problems import TITLES
from _generate.problems import codes as raised
from penstock.base.settings import Settings
from penstock.http.app import create
from penstock.http.routes.openapi import describe

WORDS = read_words("http")
TAGS: dict[str, str] = WORDS["tags"]
PARAMETERS: dict[str, str] = WORDS["parameters"]
ANSWERS: dict[str, str] = WORDS["answers"]
FORMS: dict[str, str] = WORDS["forms"]
FIELDS: dict[str, str] = WORDS["fields"]
REFUSALS: dict[str, dict[str, list[str]]] = WORDS["refusals_of"]
ANYWHERE = {"401", "403", "429", "500", "503"}
# Where no code is named for them: a body that is too large, or has an odd field.
UNSAID = {"413", "422"}
# Forms that are another one with a few fields more or less.
BASES = {
    "ListedJob": "Job",
    "SubmittedJob": "Job",
    "RetriedJob": "Job",
    "Moved": "Account",
    "NewKey": "Key",
}
_DEFAULT = "Successful Response"  # of routing.py, where a route says nothing
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("maxLength", "up to"))


def render() -> str:
    return of_document(document())


def document() -> dict[str, Any]:
    """As a server would answer it."""

    @asynccontextmanager
    async def nothing(_: Starlette) -> AsyncIterator[None]:
        yield

    return describe(create(Settings(), nothing))


def of_document(found: dict[str, Any]) -> str:
    """The page of such a document; raises Undocumented."""
    forms: dict[str, Any] = found["components"]["schemas"]
    by_tag: dict[str, list[str]] = defaultdict(list)
    summaries = []
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            summaries.append(operation.get("summary", ""))
            by_tag[operation["tags"][0]] += _operation(path, method, operation, forms)
    if twice := {one for one in summaries if summaries.count(one) > 1}:
        raise Undocumented("summary of its own", sorted(twice))
    described("tag", by_tag, TAGS)
    parts = [WORDS["about"], "## All calls", WORDS["common"], "### Refusals", WORDS["refusals"]]
    for tag, told in TAGS.items():
        parts += [f"## {tag.capitalize()}", told, *by_tag[tag]]
    shown = {_body(content): heading for heading, content in _bodies(found)}
    named = json.dumps(forms)
    parts.append("## Forms")
    for name in sorted(forms):
        if name not in shown:
            parts += _form(name, forms[name], forms)
        elif f'/{name}"' in named:
            heading = shown[name]
            parts += [f"### {name}", f"As the body of [{heading}](#{slug(heading)})."]
    _refuse_unused(found)
    return page("HTTP API", *parts)


def _operation(
    path: str, method: str, operation: dict[str, Any], forms: dict[str, Any]
) -> Iterator[str]:
    called = f"{method.upper()} {path}"
    if not operation.get("summary"):
        raise Undocumented("call", [called])
    yield f"### {operation['summary']}"
    yield f"```text\n{called}\n```"
    yield operation.get("description", "Needs no key.")
    yield table(
        ["parameter", "in", "type", ""],
        (_parameter(one, called) for one in operation.get("parameters", ())),
    )
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        if name := _body(content):
            yield f"Body, `{media}`. {sentence(_about(name, forms[name]))}"
            yield _fields(name, forms[name])
            yield from _examples(forms[name])
        elif content["schema"].get("properties"):
            yield f"Body, `{media}`."
            yield _fields(operation["operationId"], content["schema"])
        else:
            yield f"Body, `{media}`: {_type(content['schema'])}."
    answers = sorted(operation["responses"].items())
    good = [(status, one) for status, one in answers if int(status) < 400]
    yield table(["answer", ""], ([status, _answer(one, operation)] for status, one in good))
    yield _refused(operation)


def _refused(operation: dict[str, Any]) -> str:
    """By which statuses, except those that any call may answer; and the codes to look for."""
    known: dict[str, list[str]] = REFUSALS.get(operation["operationId"], {})
    said = []
    for status, one in sorted(operation["responses"].items()):
        if int(status) >= 400 and (status not in ANYWHERE | UNSAID or status in known):
            named = known.get(status, ())
            if unknown := [name for name in named if name not in raised()[int(status)]]:
                raise Undocumented(f"code of {status}", unknown)
            codes = f" {', '.join(map(code, named))}" if named else ""
            said.append(_refusal(status, one) + codes)
    if unsaid := sorted(set(known) - set(operation["responses"])):
        raise Undocumented(f"answer of {operation['operationId']}", unsaid)
    return f"Refused with {'; '.join(said)}." if said else ""


def _parameter(one: dict[str, Any], called: str) -> list[str]:
    told = one.get("description") or PARAMETERS.get(f"{one['in']} {one['name']}")
    if not told:
        raise Undocumented("parameter", [f"{called} {one['name']}"])
    default = one["schema"].get("default")
    said = sentence(told) + (f" {default} unless said." if default is not None else "")
    return [code(one["name"]), one["in"], _type(one["schema"]), said]


def _answer(one: dict[str, Any], operation: dict[str, Any]) -> str:
    shown = [
        content["schema"] for content in one.get("content", {}).values() if content.get("schema")
    ]
    form = _type(shown[0]) if shown and "$ref" in shown[0] else ""
    told = one["description"]
    if told == _DEFAULT:
        told = ANSWERS.get(operation["operationId"], "")
        if not told and not form:
            raise Undocumented("answer", [operation["operationId"]])
    return ". ".join(part.rstrip(".") for part in (told, form) if part) + "."


def _refusal(status: str, one: dict[str, Any]) -> str:
    if int(status) not in TITLES:  # HTTP's own, without a code of ours
        return f"{status} ({one['description']})"
    return f"[{status}](errors.md#{slug(f'{status} {TITLES[int(status)]}')})"


def _bodies(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each with the heading of its call."""
    for path in found["paths"].values():
        for operation in path.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield operation["summary"], content


def _body(content: dict[str, Any]) -> str:
    """The form that a body has as a whole: it is shown where it is sent, and nowhere else."""
    return str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def _form(name: str, form: dict[str, Any], forms: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield _about(name, form)
    if name not in BASES:
        yield _fields(name, form)
        yield from _examples(form)
        return
    base, own = forms[BASES[name]]["properties"], form["properties"]
    without = [code(field) for field in base if field not in own]
    more = {field: one for field, one in own.items() if field not in base}
    said = f"As {_type({'$ref': BASES[name]})}"
    yield f"{said}, without {', '.join(without)}." if without else f"{said}, and:"
    yield _fields(name, {**form, "properties": more})


def _about(name: str, form: dict[str, Any]) -> str:
    told: str | None = FORMS.get(name) or form.get("description")
    if not told:
        raise Undocumented("form", [name])
    return told


def _fields(name: str, form: dict[str, Any]) -> str:
    required = form.get("required", ()) if _is_asked(form) else ()
    rows = []
    for field, one in form.get("properties", {}).items():
        told = _words(name, field, one)
        rows.append([code(field), _type(one), f"Required. {told}" if field in required else told])
    return table(["field", "type", ""], rows)


def _is_asked(form: dict[str, Any]) -> bool:
    """Of a body that is sent to the server; an answer has all its fields."""
    return form.get("additionalProperties") is False


def _words(form: str, field: str, one: dict[str, Any]) -> str:
    told = one.get("description") or FIELDS.get(f"{form}.{field}") or FIELDS.get(field)
    if not told:
        raise Undocumented("field", [f"{form}.{field}"])
    default = one.get("default")
    return sentence(told) + (
        "" if default in (None, [], {}) else f" {_plain(default)} unless said."
    )


def _plain(default: Any) -> str:
    return ", ".join(map(str, default)) if isinstance(default, list) else str(default)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{slug(name)})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(code(one) for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    said = schema.get("format") or schema.get("type") or "any"
    if "minimum" in schema and "maximum" in schema:
        return f"{said}, {schema['minimum']:,.15g} to {schema['maximum']:,.15g}"
    return " ".join(
        [said, *(f"{sign} {schema[key]:,.15g}" for key, sign in _BOUNDS if key in schema)]
    )


def _examples(form: dict[str, Any]) -> Iterator[str]:
    for one in form.get("examples", ())[:1]:
        yield f"```json\n{json.dumps(one, indent=2, ensure_ascii=False)}\n```"


def _refuse_unused(found: dict[str, Any]) -> None:
    """Words that are about nothing any more."""
    forms = found["components"]["schemas"]
    inner = {
        operation["operationId"]: content.get("schema", {})
        for path in found["paths"].values()
        for operation in path.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    }
    fields = {
        (form, field)
        for form, one in [*forms.items(), *inner.items()]
        for field in one.get("properties", {})
    }
    known = {field for _, field in fields} | {f"{form}.{field}" for form, field in fields}
    operations = [one for path in found["paths"].values() for one in path.values()]
    named = {
        f"{one['in']} {one['name']}"
        for operation in operations
        for one in operation.get("parameters", ())
    }
    ids = {operation["operationId"] for operation in operations}
    for what, words, there in (
        ("field", FIELDS, known),
        ("form", FORMS, set(forms)),
        ("parameter", PARAMETERS, named),
        ("answer", ANSWERS, ids),
        ("call", REFUSALS, ids),
    ):
        if left := sorted(set(words) - there):
            raise Undocumented(what, [], left)
