"""Jobs and messages that should move and do not: a finding for each row of check_liveness."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from penstock.db.adapters.caller_connection import Rows
from penstock.engine.doctor.finding import Finding, count
from penstock.engine.queries.lists import Lists

OLDER_THAN = timedelta(seconds=10)
# A row that is found twice, this far apart, was not just about to move.
AGAIN_SECONDS = 1.5
ANSWER_SECONDS = 10
MOST_SHOWN = 10

_NAME = "liveness"
_START = (
    "Read the logs of the workers that serve this queue: a handler that blocks the event loop"
    " keeps them from claiming. If none does, restart them and report it."
)
_RESTART = "Upkeep runs in every worker: read their logs, and restart them."
ADVICE = {
    "a queued job starts when it may": _START,
    "a probe starts when it is due": _START,
    "a job is queued when it is due": _START,
    "a driven queue with due jobs is called": (
        "Call POST /v1/queues/{name}/process, or keep `penstock serve` running with"
        " PENSTOCK_PUBLIC_URL set: it makes the first call."
    ),
    "a webhook is sent when it is due": (
        "Workers send them: read their logs. Without PENSTOCK_SECRET they cannot sign any."
    ),
    "an on_finish callback runs when it is due": (
        "Workers run them one after the other: read their logs to find one that takes long."
    ),
}
"""What to do, by the rule; for the other rules upkeep is responsible."""


async def standstills(conn: asyncpg.Connection) -> list[Finding]:
    """Check twice, a moment apart, and report what stood still both times."""
    try:
        overdue = await _overdue(conn)
        if overdue:
            await asyncio.sleep(AGAIN_SECONDS)
            before = {(row["rule"], row["subject"]) for row in overdue}
            overdue = [
                row for row in await _overdue(conn) if (row["rule"], row["subject"]) in before
            ]
    except asyncpg.QueryCanceledError:
        message = f"penstock.check_liveness() takes longer than {ANSWER_SECONDS} s"
        advice = "Run `penstock check --liveness` when there is time."
        return [Finding(_NAME, "warning", message, advice)]
    if not overdue:
        return [Finding(_NAME, "ok", "nothing stands still that should have moved")]
    now: datetime = await conn.fetchval("select penstock.clock()")
    findings = [_finding(row, now) for row in overdue[:MOST_SHOWN]]
    if len(overdue) > MOST_SHOWN:
        message = f"and {count(len(overdue) - MOST_SHOWN, 'more finding')} like this"
        advice = "`penstock check --liveness` lists them all."
        findings.append(Finding(_NAME, "bad", message, advice))
    return findings


async def _overdue(conn: asyncpg.Connection) -> list[dict[str, Any]]:
    async def fetch(sql: str, args: Any) -> Rows:
        return list(await conn.fetch(sql, *args))

    async with conn.transaction(readonly=True):
        await conn.execute(
            "select set_config('statement_timeout', $1, true)", f"{ANSWER_SECONDS * 1000:.0f}"
        )
        return await Lists(fetch).overdue(OLDER_THAN)


def _finding(row: dict[str, Any], now: datetime) -> Finding:
    seconds = max(0, round((now - row["since"]).total_seconds()))
    return Finding(
        _NAME,
        "bad",
        f'the rule "{row["rule"]}" does not hold for {row["subject"]} since {seconds:,} s'
        f" ({row['detail']})",
        ADVICE.get(row["rule"], _RESTART),
    )
