"""Refusals and their answers."""

from starlette.responses import JSONResponse


class Wrong(Exception):  # noqa: N818  # named for what it says
    """Something the caller can put right: which field, and a sentence."""

    def __init__(self, field: str | None, sentence: str, *, status: int = 422) -> None:
        super().__init__(sentence)
        self.field = field
        self.sentence = sentence
        self.status = status


def answer(
    status: int, sentence: str, field: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"error": sentence, "field": field}, status, headers)
