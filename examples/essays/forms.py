"""The submission form: read as it streams in, within a limit, and checked field by field."""

import re
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.types import Message

from essays.errors import Wrong
from essays.images import MAX_BYTES, TOO_LARGE, Image, read_image
from essays.tasks import TASKS

LONGEST_ESSAY = 20_000
FIELD_BYTES = 1024 * 1024
FORM_BYTES = MAX_BYTES + FIELD_BYTES
# A browser shows an answer only once its own sending is over; beyond this much we hang up on it.
DRAIN_BYTES = 10 * FORM_BYTES

_NUMBER = re.compile(r"[0-9]{1,18}")
_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")


@dataclass(frozen=True, slots=True)
class Draft:
    """The validated input of a person."""

    task: str
    essay: str
    key: str
    image: Image | None
    image_of: int | None = None
    """The submission whose image is used again, if there is no new one."""

    @property
    def word_count(self) -> int:
        return len(self.essay.split())


async def read_draft(request: Request) -> Draft:
    """Read the submission of a request; raise Wrong for the first problem."""
    form_of = capped(request, FORM_BYTES, Wrong("image", TOO_LARGE, status=413))
    async with form_of.form(max_files=1, max_fields=8, max_part_size=FIELD_BYTES) as form:
        task = _text(form, "task")
        if task not in TASKS:
            raise Wrong("task", f"The task is unknown; it may be {', '.join(TASKS)}.")
        essay = _text(form, "essay").replace("\r\n", "\n").strip()
        if not essay:
            raise Wrong("essay", "The essay is empty. Write something first.")
        if len(essay) > LONGEST_ESSAY:
            raise Wrong("essay", f"The essay is longer than {LONGEST_ESSAY:,} characters.")
        if "\0" in essay:
            raise Wrong("essay", "The essay holds a NUL character, which is not text.")
        key = _text(form, "submission_key")
        if not _KEY.fullmatch(key):
            raise Wrong(
                "submission_key",
                "The submission_key must have 8 to 64 letters, digits, - or _, new for each click.",
            )
        image = await _image(form, task)
        again = _text(form, "image_of") if TASKS[task].takes_image and image is None else ""
        if again and not _NUMBER.fullmatch(again):
            raise Wrong("image_of", "The image_of must be the number of an earlier submission.")
        return Draft(task, essay, key, image, int(again) if again else None)


async def _image(form: FormData, task: str) -> Image | None:
    upload = form.get("image")
    if upload is None or upload == "":
        return None
    if not isinstance(upload, UploadFile):
        raise Wrong("image", "The image must be sent as a file.")
    if not upload.filename and not upload.size:
        return None  # browsers send this for an empty file field
    if not TASKS[task].takes_image:
        raise Wrong("image", f"The image belongs to Academic Task 1; {TASKS[task].title} has none.")
    return await read_image(upload)


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    if not isinstance(value, str):
        raise Wrong(name, f"The {name} must be text, not a file.")
    return value


def capped(request: Request, limit: int, wrong: Wrong) -> Request:
    """Return the request with a bounded body, because the form parser has no limit."""
    taken = 0

    async def take() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        return message

    async def receive() -> Message:
        message = await take()
        if taken > limit:
            while message.get("more_body") and taken < DRAIN_BYTES:
                message = await take()
            raise wrong
        return message

    return Request(request.scope, receive)
