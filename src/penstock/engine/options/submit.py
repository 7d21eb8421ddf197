"""The options of one submit; if they are not given, kind, plan and queue decide."""

from penstock.engine.encoding.encode import CREDITS_MAX
from penstock.engine.options.forms import Moment, Object, Other, Seconds, Whole
from penstock.engine.options.option import Option

_TEXT = Other("text")

JOB = (
    Option(
        name="account",
        form=_TEXT,
        command=True,
        help="The account that pays, and whose limits count; made at its first submit.",
    ),
    Option(
        name="priority",
        form=Whole(-1000, 1000),
        command=True,
        help="Replaces the priority of the plan and the kind; lower is first.",
    ),
    Option(
        name="delay",
        form=Seconds(zero=True),
        command=True,
        help="How long to wait before the job may start.",
    ),
    Option(
        name="run_at",
        form=Moment(),
        help="The time before which the job does not start; instead of a delay.",
    ),
    Option(
        name="dedupe_key",
        form=_TEXT,
        command=True,
        help="While a job of the kind and account with this key is live, a submit returns it.",
    ),
    Option(
        name="topic",
        form=_TEXT,
        command=True,
        help="What the job belongs to, so that many jobs are watched and listed together.",
    ),
    Option(
        name="price",
        form=Whole(0, CREDITS_MAX),
        help="Credits that are reserved now, and charged when the job succeeds.",
        more="If a request is split: for all its jobs together.",
    ),
    Option(
        name="max_attempts",
        form=Whole(1, 1000),
        help="How often the job may fail.",
    ),
    Option(
        name="timeout",
        form=Seconds(),
        help="How long one attempt may take.",
    ),
    Option(
        name="expires",
        form=Seconds(),
        help="A job that has not started this long after it was due fails with `expired`.",
    ),
    Option(
        name="metadata",
        form=Object(),
        help="Your own JSON object, which is returned with the job.",
    ),
    Option(
        name="webhook_url",
        form=Other("address"),
        help="The address to which the outcome of the job is sent, signed (Standard Webhooks).",
        more="`https://` and public, unless `PENSTOCK_ALLOW_PRIVATE` is set.",
    ),
)
"""The options that a job has; over HTTP, the fields of its form."""

SUBMIT = (
    *JOB,
    Option(
        name="idempotency_key",
        form=_TEXT,
        command=True,
        help="A repeated submit with this key returns the first one's job, also a finished one.",
    ),
    Option(
        name="conn",
        form=Other("connection"),
        help="Your own connection: the job exists when your transaction commits.",
        more="psycopg, asyncpg, SQLAlchemy, DB-API.",
    ),
)
