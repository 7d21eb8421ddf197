"""Every state of a job that a person can see, and the texts for it."""

from typing import Any

from browser.component import failed, running
from browser.stand_in import moment

CREDITS = {"reserved": 4, "charged": 0, "refunded": 4}
OUTAGE = (
    "The AI service is unavailable at the moment. Your work is safe and will be done automatically."
)

STATES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "queued": (
        {"position": 3, "eta_seconds": 120.0, "waiting_for": "queue_limit"},
        {"status": "Queued", "position": "#3 in queue", "wait": "starts in about 2 minutes"},
    ),
    "behind the account's own jobs": (
        {"position": 1, "eta_seconds": 20.0, "waiting_for": "account_limit"},
        {
            "position": "#1 in queue",
            "wait": "starts in less than a minute",
            "note": "Your other jobs are processed first.",
        },
    ),
    "at the rate limit": (
        {"position": 1, "eta_seconds": 5.0, "waiting_for": "rate_limit"},
        {
            "wait": "continues in a few seconds",
            "note": "The AI service accepts a limited number of requests. "
            "This continues automatically.",
        },
    ),
    "an outage": (
        {"position": 3, "waiting_for": "circuit_open"},
        {"banner": OUTAGE, "position": "#3 in queue", "wait": ""},
    ),
    "paused": (
        {"position": 3, "waiting_for": "paused"},
        {"banner": "Processing is paused. Your work is safe and starts when processing resumes."},
    ),
    "no worker": (
        {"position": 3, "waiting_for": "no_worker"},
        {
            "banner": "Nothing is being processed at the moment. "
            "Your work is safe and starts when processing resumes."
        },
    ),
    "running": (
        running(
            stage="TIER1",
            stage_label="Tier 1 scanning",
            progress={"done": 1, "total": 4, "partial": {"criterion": "style"}},
        ),
        {
            "status": "Running",
            "stage": "Tier 1 scanning",
            "count": "1 of 4",
            "partial": "criterionstyle",
        },
    ),
    "running, and stale": (
        running(
            staleness={
                "stale": True,
                "since": moment(minutes=4),
                "stage": "T",
                "message": "This takes longer than usual.",
            }
        ),
        {"status": "Running", "banner": "This takes longer than usual."},
    ),
    "dispatched": (
        running(status="awaiting", waiting_for="callback"),
        {"status": "Waiting for the result of another service"},
    ),
    "cancelling": (
        running(cancel_requested=True),
        {"status": "Cancelling…", "cancel": "Cancelling…"},
    ),
    "succeeded": (
        {"status": "succeeded", "result": "Once upon a time"},
        {"status": "Done", "result": "Once upon a time", "credits": "", "cancel": ""},
    ),
    "succeeded in part": (
        {
            "status": "succeeded",
            "result": {"images": 3},
            "progress": {"done": 3, "total": 4, "partial": None},
            "credits": {"reserved": 4, "charged": 3, "refunded": 1},
        },
        {"status": "Done", "credits": "3 of 4 delivered, 1 credit refunded."},
    ),
    "cheaper than reserved": (
        {"status": "succeeded", "credits": {"reserved": 4, "charged": 2, "refunded": 2}},
        {"credits": "2 of 4 credits used, 2 credits refunded."},
    ),
    "failed, nothing charged": (
        failed("timeout", credits=CREDITS),
        {
            "status": "Failed",
            "error": "It exceeded its time limit and was stopped.",
            "credits": "Nothing was charged.",
        },
    ),
    "failed, and charged": (
        failed("bug", credits={"reserved": 4, "charged": 1, "refunded": 3}),
        {"error": "Something went wrong on our side.", "credits": "1 credit was charged."},
    ),
    "failed, worth another try": (
        failed("overloaded")
        | {"error": {"class": "overloaded", "message": "503", "retryable": True}},
        {"error": "The AI service was overloaded.", "note": "You can try again."},
    ),
    "failed, in the app's own words": (
        failed("invalid_request")
        | {
            "error": {
                "class": "invalid_request",
                "message": "The <b>picture</b> is too small.",
                "retryable": False,
                "public": True,
            }
        },
        {"error": "The <b>picture</b> is too small."},
    ),
    "failed, and retried": (
        failed("overloaded", retried_by="b"),
        {"note": "This job is being retried."},
    ),
    "failed with an unknown class": (
        failed("solar_flare"),
        {"error": "Something went wrong."},
    ),
    "expired": (
        failed("expired"),
        {
            "status": "Not started in time",
            "error": "It was not started before its deadline.",
        },
    ),
    "cancelled": (
        {"status": "cancelled", "credits": CREDITS},
        {"status": "Cancelled", "credits": "Nothing was charged."},
    ),
}

CLASSES = """
timeout stalled rate_limited overloaded unavailable quota auth config input_too_long
input_truncated refused invalid_request bad_output interrupted provider_error no_callback
worker_lost bug expired
""".split()  # noqa: SIM905  # one long list would have a line each
