"""What states, classes and reasons are called on pages, and what can be done about them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from penstock.base import wording

STATUSES = {
    "scheduled": "Scheduled",
    "queued": "Queued",
    "running": "Running",
    "awaiting": "Awaiting its callback",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
}

CLASSES = {
    "timeout": "took longer than it may",
    "stalled": "gave no sign of life for too long",
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
    "interrupted": "the connection broke off",
    "provider_error": "the provider failed",
    "no_callback": "no callback came in time",
    "worker_lost": "its worker died",
    "bug": "the handler raised an error",
    "cancelled": "cancelled",
    "expired": "not started in time",
}

REASONS = {
    "stuck_exhausted": "it got stuck each time and will not be started again",
    "attempts_exhausted": "all attempts are used",
    "expired": "it was not started in time",
}

WAITING = {
    "queue_limit": "jobs ahead of it take all slots of its queue",
    "account_limit": "its account runs as many jobs as its plan allows",
    "rate_limit": "the queue's rate limit; it goes on by itself",
    "circuit_open": "the provider is not available; it goes on by itself when it is back",
    "paused": "its queue is paused",
    "no_worker": "no worker is there for it; penstock worker starts one",
    "no_handler": "no live worker has a handler for its kind",
    "backoff": "it failed before, and is tried again later",
    "callback": "the function that it was handed to has not called back yet",
}


def moment(at: str | datetime | None) -> str:
    """`2026-11-16 05:12:07 UTC`."""
    return "" if at is None else f"{wording.read_moment(at):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: str | datetime | None) -> str:
    """`3 min ago`, `just now`."""
    if at is None:
        return ""
    since = (datetime.now(UTC) - wording.read_moment(at)).total_seconds()
    return "just now" if since < 1 else f"{wording.seconds(round(since))} ago"


def number(value: float | None) -> str:
    """`1,234`; nothing for None."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def short(identity: object) -> str:
    """The end of an id, which differs; its beginning is the time."""
    return str(identity)[-8:]


def refusal(error: Exception) -> str:
    """What was refused and what to do, as sentences: errors end with a full stop or not."""
    text = str(error)
    return capital(text if text.endswith((".", "!", "?")) else f"{text}.")


def capital(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> Markup:
    """With a capital at its beginning, and `commands` set as such."""
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
