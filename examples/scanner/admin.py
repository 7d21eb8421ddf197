"""The operator's API of the scanner: stuck scans, and timeouts and outcomes by the hour."""

import hmac
import os
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Request

from scanner import store
from scanner.errors import Wrong
from scanner.status import listed

# Without a secret the operator's API is closed.
_SECRET = os.environ.get("SCANNER_ADMIN_SECRET") or ""


async def _operator(request: Request) -> None:
    scheme, _, said = request.headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest(said.strip().encode(), _SECRET.encode())
    if not _SECRET or scheme.lower() != "bearer" or not known:
        raise Wrong(
            "Authorization",
            "This is for the operator: send Authorization: Bearer, and SCANNER_ADMIN_SECRET.",
            status=401,
        )


Operator = Annotated[None, Depends(_operator)]
"""The type of a route parameter; without the secret the answer is 401."""


async def metrics(conn: store.Connection, queue: str, hours: int) -> dict[str, Any]:
    told = await store.read_metrics(conn, hours, queue)
    return {
        "hours": hours,
        "timeouts": [
            {
                "hour": one["hour"],
                "classification": one["class"],
                "count": one["count"],
                "totalDurationMs": one["total_duration_ms"],
            }
            for one in told["timeouts"]
        ],
        "throughput": [
            {
                "hour": one["hour"],
                "outcome": one["outcome"],
                "count": one["count"],
                "totalDurationMs": one["total_duration_ms"],
            }
            for one in told["throughput"]
        ],
    }


async def status(conn: store.Connection, queue: str) -> dict[str, Any]:
    told = await store.read_status(conn)
    [own] = [one for one in told["queues"] if one["name"] == queue]
    stuck = [one for one in told["stuck"] if one["queue"] == queue]
    names = await store.ids_of(conn, [UUID(one["id"]) for one in stuck])
    return {
        "pending": own["queued"] + own["scheduled"],
        "processing": own["running"],
        "stuck": [_stuck(one, names.get(one["id"])) for one in stuck],
        "workers": [
            {"worker": one["worker_id"], "lastHeartbeat": one["last_heartbeat"]}
            for one in told["workers"]
            if one["alive"]
        ],
    }


async def submissions(conn: store.Connection) -> dict[str, Any]:
    return {"submissions": [listed(row, job) for row, job in await store.newest(conn)]}


def _stuck(told: store.Told, submission: store.Told | None) -> dict[str, Any]:
    recovery = told["recovery"]
    return {
        "submissionId": submission and submission["id"],
        "name": submission and submission["name"],
        "jobId": told["id"],
        "stage": told["stage"] or "RECEIVED",
        "classification": told["class"],
        "since": told["since"],
        "recovery": {
            "count": recovery["count"],
            "max": recovery["max"],
            "lastRetryAt": recovery["last_at"],
            "nextRetryAfter": recovery["next_at"],
        },
    }
