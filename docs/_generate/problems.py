"""The page of errors: Python's exceptions, codes of HTTP and SQL, classes of failures.

The codes are found where they are raised: in SQL and in Python, by reading both.
"""

import ast
import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import penstock
from _generate.page import Undocumented, code, described, page, read_words, sentence, table
from penstock import errors
from penstock.failures.verdict import CLASSES as VERDICTS
from penstock.failures.verdict import Charge, Circuit, Verdict
from penstock.http.middleware import problems
from penstock.models.handlers import exceptions

SOURCE = Path(penstock.__file__).parent
WORDS = read_words("errors")
CODES: dict[str, str] = WORDS["codes"]
CLASSES: dict[str, str] = WORDS["classes"]
# Not the standard library's phrases, which differ between versions of Python.
TITLES = {int(status): title for status, title in WORDS["titles"].items()}

_RETRIED = {
    Charge.FINAL: "no",
    Charge.FULL: "attempt",
    Charge.PROVISIONAL: "provisional",
    Charge.FREE: "free",
}
_CIRCUIT = {
    Circuit.NONE: "",
    Circuit.COUNTS: "counts",
    Circuit.OPENS: "opens",
    Circuit.PAUSES: "pauses",
    Circuit.STOPS: "stops",
}
_REFUSED = {kind.__name__: kind for kind in vars(errors).values() if inspect.isclass(kind)}
# Written by functions that hand a code on, and not where something is refused.
_PASSED_ON = {"Body", "refuse_nul"}
# What refuses with its code when it is full.
_BOUNDED = {"Pool"}


def render() -> str:
    found = codes()
    described("code of a refusal", {name for names in found.values() for name in names}, CODES)
    described("class of a failure", VERDICTS, CLASSES)
    described("status", map(str, found), WORDS["titles"])
    parts = [WORDS["about"], WORDS["problem"], WORDS["sql"]]
    parts += ["## Exceptions in Python", WORDS["tree"], f"```text\n{tree()}\n```"]
    parts += ["## What a handler raises", WORDS["outcomes"], _outcomes()]
    parts += ["## Codes of refusals", WORDS["codes_about"]]
    for status, names in sorted(found.items()):
        parts.append(f"### {status} {TITLES[status]}")
        parts.append(table(["code", ""], ([code(name), CODES[name]] for name in sorted(names))))
    parts += ["## Classes of failures", WORDS["classes_about"], _classes()]
    reasons = WORDS["reasons"].items()
    parts += ["## Reasons", WORDS["reasons_about"]]
    parts.append(table(["reason", ""], ([code(name), told] for name, told in reasons)))
    return page("Errors", *parts)


def tree() -> str:
    """As errors.py draws it, which names every class there is."""
    drawn = (
        inspect.cleandoc(errors.__doc__ or "").partition("\n\n")[2].partition("\n\nThe digits")[0]
    )
    named = set(re.findall(r"\b[A-Z]\w+", " ".join(line[:34] for line in drawn.splitlines())))
    missing = sorted({name for name in _REFUSED if issubclass(_REFUSED[name], Exception)} - named)
    if missing:
        raise Undocumented("exception in the drawing of errors.py", missing)
    return inspect.cleandoc(drawn)


def _outcomes() -> str:
    rows = []
    for kind in (exceptions.Fail, exceptions.Retry, exceptions.Snooze, exceptions.Cancel):
        said, _, told = (kind.__doc__ or "").partition("\n")[0].partition(": ")
        rows.append([said, sentence(told)])
    return table(["", ""], rows)


def _classes() -> str:
    rows = ([code(name), *_verdict(one), CLASSES[name]] for name, one in VERDICTS.items())
    return table(["class", "retried", "circuit", ""], rows)


def _verdict(one: Verdict) -> list[str]:
    return [_RETRIED[one.charge], _CIRCUIT[one.circuit]]


@functools.cache
def codes() -> dict[int, set[str]]:
    """Every code that is written in the source, by status."""
    found: dict[int, set[str]] = defaultdict(set)
    for status, name in [*_in_sql(), *_in_python(), *problems._CODES.items()]:
        found[status].add(name)
    return found


def _in_sql() -> Iterator[tuple[int, str]]:
    for file in SOURCE.rglob("*.sql"):
        # In a call, or in a row of a table of refusals: fault, status, code.
        call_or_row = r"(?:_refuse\(|\('\w+',)\s*(\d{3}),\s*'(\w+)'"
        for status, name in re.findall(call_or_row, file.read_text()):
            yield int(status), name


def _in_python() -> Iterator[tuple[int, str]]:
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield from _in_call(node)


def _in_call(node: ast.Call) -> Iterator[tuple[int, str]]:
    called = (
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    )
    if called == "problem":
        status, name = node.args[:2]
        if isinstance(status, ast.Constant) and isinstance(name, ast.Constant):
            yield int(str(status.value)), str(name.value)
    for word in node.keywords:
        if word.arg == "code" and isinstance(word.value, ast.Constant):
            kind = _REFUSED.get(called)
            if kind is not None and issubclass(kind, errors.Refused):
                yield int(kind.sqlstate[2:]), str(word.value.value)
            elif kind is errors.RolledBack:
                yield HTTPStatus.SERVICE_UNAVAILABLE, str(word.value.value)
            elif called in _PASSED_ON:
                yield int(errors.Invalid.sqlstate[2:]), str(word.value.value)
            elif called in _BOUNDED:
                yield int(errors.RateLimited.sqlstate[2:]), str(word.value.value)
