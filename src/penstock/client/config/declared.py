"""Queues and plans as an app declares them, and the options that only code or TOML can give."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.client.config.source_location import SourceLocation
from penstock.db.connections.connect import FORM
from penstock.engine.options.forms import read_name, wrong
from penstock.engine.options.option import read
from penstock.engine.options.plan import PLAN
from penstock.engine.options.queue import QUEUE, RETRIES, Backoff
from penstock.errors import Invalid, Misconfigured
from penstock.net.endpoint import read_endpoint

Duration = str | int | float | timedelta
"""`"90s"`, `"5m"`, `"2h"`, `"7d"`, or a number of seconds."""

LINK_MAX = 2_000
_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a job may fail, and how long it backs off after a failure.

    attempts  how often a job may fail, 1 to 1000
    backoff   constant, linear (delay, twice the delay, …) or exponential (delay, 2, 4, 8 times …)
    delay     the delay after the first failure
    max       the longest delay; a day by default
    """

    attempts: int = 3
    backoff: Backoff = "linear"
    delay: Duration = "5m"
    max: Duration | None = None

    def __post_init__(self) -> None:
        self.declared()

    def declared(self) -> dict[str, Any]:
        """Return the options in the form of `declare_queue`."""
        return read(RETRIES, {option.name: getattr(self, option.name) for option in RETRIES})


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A queue in front of one provider of limited capacity. Made by `app.queue(...)`."""

    name: str
    declared: dict[str, Any]
    """Its options in the form of `declare_queue`."""
    inline: bool
    """Whether its jobs run in the process that submits them."""
    location: SourceLocation

    def __str__(self) -> str:
        return self.name

    @property
    def driven(self) -> bool:
        """Whether calls of the API run its jobs, and a submit starts the first call."""
        return self.declared.get("drive") == "http"

    @property
    def local_only(self) -> bool:
        """Whether its jobs may only call models in private networks."""
        return bool(self.declared.get("local_only"))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A plan. Made by `app.plan(...)`."""

    name: str
    declared: dict[str, Any]
    """Its options in the form of `declare_plan`."""
    location: SourceLocation

    def __str__(self) -> str:
        return self.name


def make_queue(name: str, location: SourceLocation, given: Mapping[str, Any]) -> Queue:
    """Check every option; SQL sets the defaults of those that are not given."""
    retry = given["retry"]
    if retry is not None and not isinstance(retry, Retries):
        raise wrong("retry", retry, 'it may be Retries(attempts=3, delay="5m")')
    if given["burst"] is not None and given["rate"] is None:
        raise wrong("burst", given["burst"], "it needs a rate")
    declared = {**read(QUEUE, given), **(retry.declared() if retry else {})}
    inline = declared.pop("inline", False)  # only for the app: the database does not keep it
    return Queue(read_name(name, "queue"), declared, inline, location)


def make_plan(name: str, location: SourceLocation, given: Mapping[str, Any]) -> Plan:
    """Check every option; SQL sets the defaults of those that are not given."""
    return Plan(read_name(name, "plan"), read(PLAN, given), location)


def name_of(queue: Any, known: Mapping[str, Queue]) -> str:
    """Return the queue's name for `@app.job(queue=…)`, given one of the app's queues or a name."""
    if isinstance(queue, str):
        return read_name(queue, "queue")
    if inspect.isfunction(queue):
        raise Misconfigured(
            f"@app.job above {queue.__name__} needs parentheses, and the queue in them: "
            '@app.job(queue="...")'
        )
    if not isinstance(queue, Queue):
        raise wrong("queue", queue, "it may be what app.queue(...) returned, or its name")
    if queue.name not in known:
        raise Misconfigured(
            f"queue {queue.name} ({queue.location}) was declared by another Penstock: declare it "
            "here, or give its name"
        )
    return queue.name


def read_address(value: Any, option: str) -> str | None:
    """Check the address of a database. A wrong one is not quoted: it may hold a password."""
    if value is None or (isinstance(value, str) and value.startswith(_SCHEMES)):
        return value
    raise Invalid(
        f"{option} must be an address of the form {FORM}", code="invalid_option", field=option
    )


def read_link(value: Any, option: str) -> str | None:
    """Check an address of the operator's. A wrong one is not quoted: it may hold a secret."""
    if value is None:
        return None
    endpoint = read_endpoint(value, from_variable=True, option=option)
    if endpoint.authorization is not None or len(value) > LINK_MAX or not value.isascii():
        raise Invalid(
            f"{option} must be an address in ASCII of at most {LINK_MAX} characters, without user "
            "and password: messages to it are signed instead",
            code="invalid_option",
            field=option,
        )
    return str(value)
