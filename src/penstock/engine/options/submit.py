"""The options of one submit; without them kind, plan and queue decide."""

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
        help="Instead of the priority of the plan and the kind; lower is first.",
    ),
    Option(
        name="delay",
        form=Seconds(zero=True),
        command=True,
        help="The job does not start before so long from now.",
    ),
    Option(
        name="run_at",
        form=Moment(),
        help="The job does not start before this moment; instead of a delay.",
    ),
    Option(
        name="dedupe_key",
        form=_TEXT,
        command=True,
        help="While a job of the kind and account with this key lives, a submit returns that one.",
    ),
    Option(
        name="topic",
        form=_TEXT,
        command=True,
        help="What the job belongs to, to watch and list many jobs together.",
    ),
    Option(
        name="price",
        form=Whole(0, CREDITS_MAX),
        help="Credits that are reserved now, and charged when the job succeeds.",
        more="Of a request that is split, for all its jobs together.",
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
        help="A job that has not started so long after it was due has failed: `expired`.",
    ),
    Option(
        name="metadata",
        form=Object(),
        help="A JSON object of yours, which comes back with the job.",
    ),
    Option(
        name="webhook_url",
        form=Other("address"),
        help="The address to which the outcome of the job is sent, signed (Standard Webhooks).",
        more="`https://` and public, unless `PENSTOCK_ALLOW_PRIVATE` is set.",
    ),
)
"""Those that the job has, over HTTP the fields of its form."""

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
        help="A connection of yours: the job exists when your transaction commits.",
        more="psycopg, asyncpg, SQLAlchemy, DB-API.",
    ),
)
