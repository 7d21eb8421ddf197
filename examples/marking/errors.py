"""What is refused, and the answer that says so: a sentence for people, a field for programs."""

from starlette.responses import JSONResponse


class Wrong(Exception):  # noqa: N818  # named for what it says
    """A mistake that the person can correct: the field and a message."""

    def __init__(self, field: str | None, sentence: str, *, status: int = 422) -> None:
        super().__init__(sentence)
        self.field = field
        self.sentence = sentence
        self.status = status


def answer(
    status: int,
    sentence: str,
    field: str | None = None,
    *,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    return JSONResponse({"ok": False, "field": field, "error": sentence}, status, headers)
