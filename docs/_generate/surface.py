"""The page of Python: what `penstock` exports, with its calls and what they say of themselves."""

import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import penstock
from _generate.page import Undocumented, code, columns_of, page, read_words, sentence, table
from penstock.client.accounts import Accounts
from penstock.client.sync import Sync
from penstock.client.testing import Clock, Testing
from penstock.errors import PenstockError
from penstock.models.handlers.files import File

WORDS = read_words("python")
CLASSES: dict[str, str] = WORDS["classes"]
ATTRIBUTES: dict[str, str] = WORDS["attributes"]
INNER: dict[str, list[str]] = WORDS["inner"]
ORDER: list[str] = WORDS["order"]
# A job's fields have the same words here as in the HTTP API.
FIELDS: dict[str, str] = read_words("http")["fields"]
# Reached through others, and not exported.
BESIDE: dict[str, type] = {
    "app.accounts": Accounts,
    "app.sync": Sync,
    "app.testing()": Testing,
    "t.clock": Clock,
    "file": File,
}


def render() -> str:
    found = {name: getattr(penstock, name) for name in penstock.__all__}
    shown = {name for name, one in found.items() if not issubclass(one, PenstockError)}
    if missing := sorted(shown.symmetric_difference(ORDER)):
        raise Undocumented("name of penstock", missing)
    parts = [WORDS["about"]]
    for name in ORDER:
        parts += section(name, found[name])
    parts += ["## Reached through others", "What other calls give you."]
    for name, kind in BESIDE.items():
        parts += section(name, kind, level="###")
    return page("Python", *parts, "## Exceptions", WORDS["errors"])


def section(name: str, kind: type, *, level: str = "##") -> Iterator[str]:
    """One class: what it is, its attributes, its calls."""
    yield f"{level} {name}"
    if name in WORDS["made"]:
        yield block(f"{name}({_arguments(kind)})")
    if name in CLASSES:
        yield CLASSES[name]
    elif kind.__doc__:
        yield paragraphs(kind.__doc__)
    else:
        raise Undocumented("class", [name])
    rows, calls = [], []
    for member, value in members(kind):
        if member in INNER.get(kind.__name__, ()):
            continue
        if callable(value):
            calls.append((member, value))
        else:
            rows.append([code(member), _told(kind, member)])
    yield table(["attribute", ""], rows)
    for member, value in calls:
        yield block(signature(kind, member, value))
        told = paragraphs(_doc(kind, member, value))
        if link := WORDS["options"].get(f"{kind.__name__}.{member}"):
            # Its options are told there, with forms and defaults.
            told = f"{told.partition('| argument')[0].strip()} Options: [settings]({link})."
        yield told


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public ones, in the order in which they are written; attributes of instances among them."""
    seen: set[str] = set()
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("penstock"):
            for name in [*inspect.get_annotations(one), *vars(one)]:
                if not name.startswith("_") and name not in seen:
                    seen.add(name)
                    yield name, inspect.getattr_static(kind, name, None)


def _doc(kind: type, member: str, value: Any) -> str:
    told = ATTRIBUTES.get(f"{kind.__name__}.{member}") or inspect.getdoc(value)
    if not told:
        raise Undocumented("call", [f"{kind.__name__}.{member}"])
    return told


def _told(kind: type, member: str) -> str:
    """A property says it itself; a field has its words beside the others, or under it."""
    value = inspect.getattr_static(kind, member, None)
    told = inspect.getdoc(value) if isinstance(value, property) else None
    told = told or ATTRIBUTES.get(f"{kind.__name__}.{member}") or _under(kind, member)
    if kind is penstock.JobInfo and not told:
        told = (FIELDS.get(f"Job.{member}") or FIELDS[member]).replace("null", "None")
    if not told:
        raise Undocumented("attribute", [f"{kind.__name__}.{member}"])
    return sentence(told)


def _under(kind: type, member: str) -> str | None:
    """The text that stands under a field in the source."""
    for one in kind.__mro__:
        if one.__module__.startswith("penstock"):
            match = re.search(
                rf'^    {member}: [^\n]+\n    """(.+?)"""',
                inspect.getsource(one),
                re.MULTILINE | re.DOTALL,
            )
            if match:
                return match[1]
    return None


def signature(kind: type, member: str, value: Any) -> str:
    """As one would call it."""
    called = f"{WORDS['prefixes'].get(kind.__name__, '')}{member}"
    if said := WORDS["called"].get(called):
        return str(said)
    is_awaited = inspect.iscoroutinefunction(value) or kind is penstock.Job
    return f"{'await ' if is_awaited else ''}{called}({_arguments(value)})"


def _arguments(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(_written(one for one in parameters if one.name != "self"))


def block(text: str) -> str:
    return f"```text\n{text}\n```"


def _written(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for one in parameters:
        if one.annotation is typing.Never:
            continue  # refuses arguments without a name
        if one.kind is one.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        if one.kind is one.VAR_KEYWORD:
            yield f"**{one.name}"
        elif one.kind is one.VAR_POSITIONAL:
            starred = True
            yield f"*{one.name}"
        elif one.default is one.empty:
            yield one.name
        else:
            yield f"{one.name}={one.default!r}"


def paragraphs(text: str) -> str:
    """A docstring as Markdown: what is indented or set in columns stays as it is."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        lines = part.splitlines()
        if all(line.startswith("    ") for line in lines):
            parts.append(block(inspect.cleandoc("\n" + part)))
        elif told := columns_of(part):
            rows = ([code(name), sentence(said)] for name, said in told.items())
            parts.append(table(["argument", ""], rows))
        else:
            parts.append(" ".join(lines))
    return "\n\n".join(parts)
