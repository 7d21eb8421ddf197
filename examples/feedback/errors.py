"""Refusals and their answers, in the language of the page."""

from fastapi import Request
from starlette.responses import JSONResponse


class Wrong(Exception):  # noqa: N818  # named for what it says
    """A mistake that the person can correct: the field and a message."""

    def __init__(self, field: str | None, sentence: str, *, status: int = 422) -> None:
        super().__init__(sentence)
        self.field = field
        self.sentence = sentence
        self.status = status


def answer(status: int, sentence: str, field: str | None = None) -> JSONResponse:
    return JSONResponse({"ok": False, "field": field, "error": sentence}, status)


async def answer_wrong(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Wrong)
    return answer(error.status, error.sentence, error.field)
