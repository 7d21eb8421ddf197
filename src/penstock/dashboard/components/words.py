"""The words of pages for statuses, error classes and reasons; filters of templates."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from penstock.base import wording

STATUSES = {
    "scheduled": "Scheduled",
    "queued": "Queued",
    "running": "Running",
    "awaiting": "Awaiting callback",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
}

CLASSES = {
    "timeout": "exceeded its timeout",
    "stalled": "reported no progress for too long",
    "rate_limited": "the provider asked to wait",
    "overloaded": "the provider is overloaded",
    "unavailable": "the provider cannot be reached",
    "quota": "the provider's quota or credit is used up",
    "auth": "the provider refuses the key",
    "config": "the provider does not know the model, or refuses a setting",
    "input_too_long": "the input is too long for the model",
    "input_truncated": "the provider cut the input off",
    "refused": "the model declined to answer",
    "invalid_request": "the request is not valid",
    "bad_output": "the answer of the model is not usable",
    "interrupted": "the connection was lost",
    "provider_error": "the provider failed",
    "no_callback": "no callback came in time",
    "worker_lost": "its worker was lost",
    "bug": "the handler raised an error",
    "cancelled": "cancelled",
    "expired": "not started in time",
}

REASONS = {
    "stuck_exhausted": "it got stuck each time and is not started again",
    "attempts_exhausted": "all attempts are used",
    "expired": "it was not started in time",
}

WAITING = {
    "queue_limit": "jobs ahead of it take all slots of its queue",
    "account_limit": "its account runs as many jobs as its plan allows",
    "rate_limit": "the queue's rate limit is used up; it starts automatically",
    "circuit_open": "the provider is unavailable; it starts automatically when it answers again",
    "paused": "its queue is paused",
    "no_worker": "no worker serves its queue; penstock worker starts one",
    "no_handler": "no worker that is alive has a handler for its kind",
    "backoff": "it failed before and is backing off",
    "callback": "the outside function has not called back yet",
}


def moment(at: str | datetime | None) -> str:
    """Return `2026-11-16 05:12:07 UTC`."""
    return "" if at is None else f"{wording.read_moment(at):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: str | datetime | None) -> str:
    """Return `3 min ago` or `just now`."""
    if at is None:
        return ""
    since = (datetime.now(UTC) - wording.read_moment(at)).total_seconds()
    return "just now" if since < 1 else f"{wording.seconds(round(since))} ago"


def number(value: float | None) -> str:
    """Return `1,234`; empty for None."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def short(identity: object) -> str:
    """Return the end of an id; its beginning is a time, which differs little between jobs."""
    return str(identity)[-8:]


def refusal(error: Exception) -> str:
    """Return the message of a refusal as a sentence; messages may lack the full stop."""
    text = str(error)
    return capital(text if text.endswith((".", "!", "?")) else f"{text}.")


def capital(text: str) -> str:
    """Return the text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> Markup:
    """Return the text with a capital at its beginning, and text in backticks as code."""
    parts = enumerate(capital(text).split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in parts
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "moment": moment,
    "ago": ago,
    "number": number,
    "short": short,
    "seconds": lambda value: wording.seconds(value) or "",
    "age": lambda at: wording.age(at) or "",
    "ahead": wording.ahead,
    "count": wording.count,
    "sentence": sentence,
}
