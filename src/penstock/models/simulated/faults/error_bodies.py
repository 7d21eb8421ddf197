"""Error answers in the words of those who send them: statuses, storms, empty accounts, proxies."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any

from penstock.models.simulated.connection import JSON
from penstock.models.simulated.faults.faults import HTML, Html, Quota, Status, Storm
from penstock.models.simulated.protocols import ollama, openai

_OVERLOADED = 529
_MESSAGES = {
    400: ("invalid request", None),
    401: ("Incorrect API key provided.", "invalid_api_key"),
    402: ("Payment required.", "billing_error"),
    403: ("You are not allowed to use this model.", "permission_denied"),
    404: ("model 'llama3' not found", "model_not_found"),
    408: ("The request took too long to come.", "request_timeout"),
    409: ("The resource is in use.", "conflict"),
    413: ("The request is too large.", "request_too_large"),
    422: ("The request cannot be processed.", "unprocessable"),
    429: ("Rate limit reached for requests.", "rate_limit_exceeded"),
    500: ("The server had an error while processing your request.", None),
    502: ("bad gateway", None),
    503: (ollama.BUSY, None),
    504: ("The upstream server did not answer in time.", None),
}
_FORMS = ("seconds", "float", "date", "ms", "garbage", "negative", "none")


@dataclass(frozen=True, slots=True)
class Body:
    status: int
    data: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


def error_body(path: str, status: int, message: str, code: str | None = None) -> bytes:
    """In the form of whoever owns the path; 529 is Anthropic's own."""
    if status == _OVERLOADED:
        said = {"type": "overloaded_error", "message": "Overloaded"}
        return json.dumps({"type": "error", "error": said}).encode()
    if path.startswith("/api/"):
        return ollama.error(message)
    return openai.error(status, message, code)


def status_body(fault: Status, path: str) -> Body:
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["Retry-After"] = fault.retry_after
    if fault.body is None:
        message, code = _MESSAGES.get(fault.code, (_phrase(fault.code), None))
        data, kind = error_body(path, fault.code, message, code), JSON
    elif isinstance(fault.body, str):
        data, kind = fault.body.encode(), "text/plain; charset=utf-8"
    else:
        data, kind = json.dumps(fault.body).encode(), JSON
    return Body(fault.code, data, fault.content_type or kind, headers)


class Storms:
    """Refusals for load; those of the form `all` take the forms of Retry-After by turns."""

    def __init__(self) -> None:
        self._forms: Iterator[str] = itertools.cycle(_FORMS)

    def body(self, fault: Storm, path: str) -> Body:
        form = next(self._forms) if fault.form == "all" else fault.form
        message, code = _MESSAGES.get(fault.code, ("Overloaded", None))
        data = error_body(path, fault.code, message, code)
        return Body(fault.code, data, headers=_retry_after(form, fault.after))


def _retry_after(form: str, seconds: float) -> dict[str, str]:
    match form:
        case "seconds":
            return {"Retry-After": str(round(seconds))}
        case "float":
            return {"Retry-After": f"{seconds:.3f}"}
        case "date":
            at = datetime.now(UTC) + timedelta(seconds=seconds)
            return {"Retry-After": format_datetime(at, usegmt=True)}
        case "ms":
            return {"retry-after-ms": str(round(seconds * 1_000))}
        case "garbage":
            return {"Retry-After": "soon"}
        case "negative":
            return {"Retry-After": str(-round(seconds))}
        case _:
            return {}


def quota_body(fault: Quota) -> Body:
    match fault.form:
        case "insufficient":
            said = "You exceeded your current quota, please check your plan and billing details."
            return Body(429, _quota(said, "insufficient_quota"))
        case "credit":
            return Body(429, _quota("Your credit balance is used up.", "credit_balance_exhausted"))
        case "spend_limit":
            said = "The spend limit of this project is reached."
            return Body(429, _quota(said, "project_spend_limit_exceeded"))
        case "anthropic":
            error: dict[str, Any] = {
                "type": "rate_limit_error",
                "message": "The spend limit of your organization is reached.",
                "details": {"error_code": "enforced_spend_limit_reached"},
            }
            return Body(429, json.dumps({"type": "error", "error": error}).encode())
        case "billing":
            error = {"type": "billing_error", "message": "Your credit balance is too low."}
            return Body(402, json.dumps({"type": "error", "error": error}).encode())


def _quota(message: str, code: str) -> bytes:
    said = {"message": message, "type": "insufficient_quota", "param": None, "code": code}
    return json.dumps({"error": said}).encode()


def html_body(fault: Html) -> Body:
    page = HTML.format(title=f"{fault.code} {_phrase(fault.code)}")
    return Body(fault.code, page.encode(), "text/html; charset=utf-8")


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "Overloaded" if code == _OVERLOADED else "Unknown"
