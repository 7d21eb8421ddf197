"""The options of a queue, and of how its jobs are retried."""

from typing import Literal, get_args

from penstock.engine.options.forms import Flag, Kept, Other, Rate, Seconds, Whole, Word
from penstock.engine.options.option import Option

Order = Literal["strict", "aging", "fair"]
Backoff = Literal["constant", "linear", "exponential"]
Drive = Literal["worker", "http"]


RETRIES = (
    Option(
        name="attempts",
        form=Whole(1, 1000),
        label="Attempts",
        help="How often a job may fail.",
        more="The last of these failures is final: `attempts_exhausted`.",
    ),
    Option(
        name="backoff",
        form=Word(get_args(Backoff)),
        label="Wait between attempts",
        help="How the wait between attempts grows.",
        more="Always the delay; once, twice, three times the delay; or 1, 2, 4, 8 times the delay.",
    ),
    Option(
        name="delay",
        form=Seconds(zero=True),
        label="First wait",
        help="The wait after the first failure.",
    ),
    Option(
        name="max",
        form=Seconds(zero=True),
        stored="backoff_max_seconds",
        label="Longest wait",
        help="The longest wait between attempts.",
    ),
)

QUEUE = (
    Option(
        name="concurrency",
        form=Whole(1, 1_000_000),
        label="Jobs at once",
        unlimited=1_000_000,
        help="How many of its jobs may run at once, on all machines together.",
    ),
    Option(
        name="rate",
        form=Rate(),
        label="Rate",
        unlimited="1000000/s",
        help="How many attempts may start in a period, like 10/s or 500/min.",
        more="They are spread over it, so a provider's limit is not used up in one second.",
    ),
    Option(
        name="burst",
        form=Whole(1, 1_000_000_000),
        label="Burst",
        default="one second of the rate",
        help="How many attempts of the rate may start at once, after a pause.",
    ),
    Option(
        name="order",
        form=Word(get_args(Order)),
        label="Order",
        help="Which job is next; it can change only while the queue is empty.",
        more="`aging`: by arrival, with priority as a head start; `strict`: by priority, then"
        " arrival; `fair`: in turns between accounts."
        " [Which one](../explanation/limits-and-fairness.md#order).",
    ),
    Option(
        name="aging_step",
        form=Seconds(zero=True),
        label="Aging step",
        help="With order aging, how much waiting one point of priority is worth.",
    ),
    Option(
        name="timeout",
        form=Seconds(),
        label="Time-out",
        help="How long one attempt may take.",
        more="After that it is stopped, and fails with `timeout`.",
    ),
    Option(
        name="stale_after",
        form=Seconds(),
        label="Stale after",
        help="An attempt that has reported nothing for so long is shown as stale.",
        more="Nothing else happens.",
    ),
    Option(
        name="stuck_after",
        form=Seconds(),
        label="Stuck after",
        help="An attempt that has reported nothing for so long is stopped and recovered.",
    ),
    Option(
        name="retry",
        form=Other("[Retries](#retries)"),
        inner=RETRIES,
        default="see there",
        help="How often a job may fail, and how long it waits between attempts.",
    ),
    Option(
        name="recovery",
        form=Whole(0, 1000),
        label="Recoveries",
        help="How often a job may lose its worker or get stuck, apart from its failures.",
        more="The next time it fails: `stuck_exhausted`.",
    ),
    Option(
        name="retention",
        form=Kept(),
        label="Keep succeeded jobs",
        help="How long succeeded and cancelled jobs are kept.",
    ),
    Option(
        name="retention_failed",
        form=Kept(),
        label="Keep failed jobs",
        help="How long failed jobs are kept.",
    ),
    Option(
        name="inline",
        form=Flag(),
        default="false",
        help="Run its jobs in the process that submits them.",
        more="For development, and to turn the queue off.",
    ),
    Option(
        name="local_only",
        form=Flag(),
        help="Its model jobs may call addresses of private networks only.",
        more="Checked when each connection is made.",
    ),
    Option(
        name="drive",
        form=Word(get_args(Drive)),
        help="Whether workers run its jobs, or calls of the HTTP API.",
        more="`http` is for installations without a standing process: calls of"
        " `POST /v1/queues/{name}/process` run the jobs, and a submit starts the first call.",
    ),
)
