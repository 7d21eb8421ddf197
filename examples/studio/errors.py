"""Refusals and their answers: a message for people, members for programs."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse

from penstock import InsufficientCredits, RateLimited, Refused
from studio.kinds import IMAGES_PER_JOB


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
    **members: Any,
) -> JSONResponse:
    said = {"ok": False, "field": field, "error": sentence, **members}
    return JSONResponse(said, status, headers)


def answer_too_dear(
    error: InsufficientCredits, *, fewer: bool, plainer: bool, operator: bool
) -> JSONResponse:
    """Answer with the price, the balance and what the customer can do."""
    less = ["for fewer images"] * fewer + ["for standard quality"] * plainer
    more = "buy credits in the operator's corner" if operator else "ask the operator for more"
    advice = f"ask {' or '.join(less)}, or {more}" if less else more
    return answer(
        402,
        f"This costs {in_credits(error.required)}, and you have {error.balance}. "
        f"{advice[0].upper()}{advice[1:]}.",
        "images",
        code=error.code,
        balance=error.balance,
        price=error.required,
    )


async def answer_refused(_request: Request, error: Exception) -> JSONResponse:
    """Answer a refusal of Penstock in the words of a shop."""
    match error:
        case RateLimited(next_at=datetime() as when, retry_after=float() as wait):
            when = when.astimezone(UTC)
            # A whole minute, and not one that is too early.
            minute = (when + timedelta(minutes=1, microseconds=-1)).replace(second=0, microsecond=0)
            plan, most = error.members.get("plan"), error.members.get("per_hour")
            return answer(
                429,
                f"The {plan} plan has {most} orders an hour, where more than {IMAGES_PER_JOB} "
                f"images count as two, and this is more than is left. It will pass at "
                f"{minute:%H:%M} UTC.",
                code=error.code,
                next_at=when.isoformat(),
                headers={"Retry-After": str(math.ceil(wait))},
            )
        case Refused(code="idempotency_key_reused"):
            return answer(
                422,
                "This Idempotency-Key was used for another request: make a new one for each.",
                "Idempotency-Key",
                code=error.code,
            )
        case Refused():
            return answer(error.status, f"{error.message}.", error.field, code=error.code)
        case _:
            raise AssertionError(error)


def in_credits(number: int) -> str:
    return "1 credit" if number == 1 else f"{number} credits"
