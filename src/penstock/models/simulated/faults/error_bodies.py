"""Error answers as real servers send them: statuses, rate limits, empty accounts, proxies."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, NamedTuple

from penstock.models.simulated.connection import JSON, PHRASES
from penstock.models.simulated.faults.orders import Fault
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
    503: (ollama.LINE_FULL, None),
    504: ("The upstream server did not answer in time.", None),
}
_PAGE = (
    "<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n"
    "<body><center><h1>{title}</h1></center><hr><center>proxy</center></body></html>\n"
)
_NONSENSE = b"I am sorry, but something went wrong"
_RETRY_AFTER: dict[str, Callable[[float], tuple[str, str]]] = {
    "seconds": lambda seconds: ("Retry-After", str(round(seconds))),
    "float": lambda seconds: ("Retry-After", f"{seconds:.3f}"),
    "date": lambda seconds: (
        "Retry-After",
        format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True),
    ),
    "ms": lambda seconds: ("retry-after-ms", str(round(seconds * 1_000))),
    "garbage": lambda _: ("Retry-After", "soon"),
    "negative": lambda seconds: ("Retry-After", str(-round(seconds))),
}
FORMS = (*_RETRY_AFTER, "none")
"""The forms of Retry-After, in the order in which a storm of the form `all` uses them."""


def _anthropic(error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": error}


def _openai(message: str, code: str) -> dict[str, Any]:
    kind = "insufficient_quota"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


_QUOTAS = {
    "insufficient": (
        429,
        _openai(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
        ),
    ),
    "credit": (429, _openai("Your credit balance is used up.", "credit_balance_exhausted")),
    "spend_limit": (
        429,
        _openai("The spend limit of this project is reached.", "project_spend_limit_exceeded"),
    ),
    "anthropic": (
        429,
        _anthropic(
            {
                "type": "rate_limit_error",
                "message": "The spend limit of your organization is reached.",
                "details": {"error_code": "enforced_spend_limit_reached"},
            }
        ),
    ),
    "billing": (
        402,
        _anthropic({"type": "billing_error", "message": "Your credit balance is too low."}),
    ),
}


class Response(NamedTuple):
    """The arguments of `Connection.send`."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] | None = None


def error_body(path: str, status: int, message: str, code: str | None = None) -> bytes:
    """Return an error body in the format of the path's protocol; 529 has Anthropic's format."""
    if status == _OVERLOADED:
        overloaded = {"type": "overloaded_error", "message": "Overloaded"}
        return json.dumps(_anthropic(overloaded)).encode()
    if path.startswith("/api/"):
        return ollama.error(message)
    return openai.error(status, message, code)


def error_response(fault: Fault, path: str, forms: Iterator[str]) -> Response | None:
    """Return the answer of a fault that needs no model; None for other faults.

    `forms`: yields the next form of Retry-After for a storm.
    """
    given = fault.parameters
    match fault.name:
        case "status":
            return _status(given, path)
        case "storm":
            form = next(forms) if given["form"] == "all" else given["form"]
            make_header = _RETRY_AFTER.get(form)
            headers = dict([make_header(given["after"])]) if make_header else {}
            return Response(given["code"], _usual_body(path, given["code"]), headers=headers)
        case "quota":
            status, error = _QUOTAS[given["form"]]
            return Response(status, json.dumps(error).encode())
        case "html":
            page = _PAGE.format(title=f"{given['code']} {PHRASES.get(given['code'], 'Unknown')}")
            return Response(given["code"], page.encode(), "text/html; charset=utf-8")
        case "refusal" if path == openai.IMAGES:
            return Response(400, openai.pictures_refused())
        case "not_json":
            return Response(200, _NONSENSE)
        case "empty" if given["what"] == "body":
            return Response(200, b"")
        case _:
            return None


def _status(given: Mapping[str, Any], path: str) -> Response:
    headers = dict(given["headers"])
    if given["retry_after"] is not None:
        headers["Retry-After"] = given["retry_after"]
    body, content_type = given["body"], JSON
    if body is None:
        data = _usual_body(path, given["code"])
    elif isinstance(body, str):
        data, content_type = body.encode(), "text/plain; charset=utf-8"
    else:
        data = json.dumps(body).encode()
    return Response(given["code"], data, given["content_type"] or content_type, headers)


def _usual_body(path: str, code: int) -> bytes:
    """Return the body that a provider usually sends with this status."""
    return error_body(path, code, *_MESSAGES.get(code, (PHRASES.get(code, "Unknown"), None)))
