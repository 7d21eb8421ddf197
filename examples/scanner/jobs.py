"""The scan of a package as a Penstock job: how it is submitted, what it does, how it ends.

A worker runs this module:  penstock worker scanner.jobs:app
"""

import time
from dataclasses import asdict
from typing import Any
from uuid import UUID

import asyncpg

from penstock import FinishedJob, Job, Penstock, Retries
from scanner import rules, store
from scanner.behaviours import Behaviour, act
from scanner.ends import end_of
from scanner.errors import Wrong
from scanner.forms import Package
from scanner.times import MINUTE, STALE_SECONDS, STUCK_SECONDS, TIER_SECONDS, TIMEOUT_SECONDS

app = Penstock(name="scanner")
queue = app.queue(
    "scanner",
    concurrency=4,
    timeout=TIMEOUT_SECONDS,
    stale_after=STALE_SECONDS,
    stuck_after=STUCK_SECONDS,
    # The recoveries of a scan that hung or lost its worker.
    recovery=3,
    retry=Retries(attempts=3, backoff="linear", delay=MINUTE),
)
STAGES = {1: ("TIER1_SCANNING", "Tier 1 scanning"), 2: ("TIER2_SCANNING", "Tier 2 scanning")}


# In a process of its own, which can be stopped whatever the scan hangs in.
@app.job(queue=queue, dedupe="submission_id", isolation="process")
def scan(
    submission_id: UUID,  # noqa: ARG001  # for dedupe, and for our row at the end
    text: str,
    behaviour: Behaviour,
    job: Job,
) -> dict[str, Any]:
    """Scan a package in tiers; findings in the first tier skip the second."""
    lines = text.splitlines()
    findings: list[rules.Finding] = []
    done, total = 0, sum(len(tier) for tier in rules.TIERS.values())
    for tier, wanted in rules.TIERS.items():
        # The stage stays until the next one begins, so that no page shows a step back.
        job.stage(STAGES[tier][0], label=STAGES[tier][1])
        act(behaviour, tier, job.attempt)
        for rule in wanted:
            findings += rules.look(tier, rule, lines)
            time.sleep(TIER_SECONDS / len(wanted))
            done += 1
            job.progress(done, total)
        if findings:
            break
    if behaviour == "findings":
        findings.append(rules.ORDERED)
    shown = [asdict(one) for one in findings[: rules.MOST_FINDINGS]]
    return {"findings": shown, "start": job.attempt}


@scan.on_finish
async def close(job: FinishedJob, conn: asyncpg.Connection) -> None:
    """Update our row in the transaction that finishes the job."""
    end = end_of(job.status, job.result, job.error)
    await store.finish(conn, UUID(job.payload["submission_id"]), end)


async def submit(pool: asyncpg.Pool, package: Package, click: str) -> tuple[UUID, bool]:
    """Store a submission and queue its scan in one transaction; return whether it is new."""
    async with pool.acquire() as conn, conn.transaction():
        made = await store.save(conn, package, click)
        if made is None:
            known = await store.find(conn, click)
            if known.package != package:
                raise Wrong(
                    "Idempotency-Key",
                    "This Idempotency-Key was used for another package: make a new one for each.",
                )
            return known.id, False
        await _queue(conn, made, package)
    return made, True


async def submit_again(pool: asyncpg.Pool, submission: UUID) -> tuple[UUID, bool]:
    """Submit a package again after a failure that was our fault; two clicks make one."""
    async with pool.acquire() as conn, conn.transaction():
        made, package = await store.save_again(conn, submission)
        if package is not None:
            await _queue(conn, made, package)
    return made, package is not None


async def _queue(conn: store.Connection, submission: UUID, package: Package) -> None:
    ticket = await scan.using(conn=conn).submit(
        submission_id=submission, text=package.text, behaviour=package.behaviour
    )
    await store.set_job(conn, submission, ticket.id)
