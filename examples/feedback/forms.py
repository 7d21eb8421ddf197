"""Input of pupils: read within a size limit and checked field by field."""

import re
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData
from starlette.types import Message

from feedback.errors import Wrong
from feedback.tasks import TASKS

LONGEST_ANSWER = 6_000
FORM_BYTES = 128 * 1024

_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")
_TOO_LONG = f"Dein Text ist zu lang: höchstens {LONGEST_ANSWER} Zeichen. Kürze ihn ein wenig."


@dataclass(frozen=True, slots=True)
class Draft:
    task: str
    answer: str
    key: str


async def read_draft(request: Request) -> Draft:
    """Read the text of a request; raise Wrong for the first problem."""
    async with capped(request, _TOO_LONG).form(max_files=0, max_fields=6) as form:
        task = _text(form, "task")
        if task not in TASKS:
            raise Wrong("task", "Diese Aufgabe gibt es nicht. Lade die Seite neu.")
        answer = _text(form, "answer").replace("\r\n", "\n").strip()
        if not answer:
            raise Wrong("answer", "Hier steht noch nichts. Schreib erst deinen Text.")
        if len(answer) > LONGEST_ANSWER:
            raise Wrong("answer", _TOO_LONG)
        if "\0" in answer:
            raise Wrong("answer", "Dein Text enthält ein ungültiges Zeichen.")
        key = _text(form, "submission_key")
        if not _KEY.fullmatch(key):
            raise Wrong(
                "submission_key",
                "submission_key: 8 bis 64 Buchstaben, Ziffern, - oder _, neu für jede Abgabe.",
            )
        return Draft(task, answer, key)


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    if not isinstance(value, str):
        raise Wrong(name, f"{name} muss Text sein.")
    return value


def capped(request: Request, too_long: str) -> Request:
    """Return the request with a bounded body, because the form parser has no limit."""
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > FORM_BYTES:
            raise Wrong("answer", too_long, status=413)
        return message

    return Request(request.scope, receive)
