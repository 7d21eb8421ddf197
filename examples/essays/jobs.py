"""The analysis of an essay as a Penstock job: how it is submitted, what it does, how it ends.

A worker runs this module:  penstock worker essays.jobs:app
"""

import asyncio
import base64
import os
from typing import Any

import asyncpg
import httpx

from essays import store
from essays.forms import Draft
from essays.status import why
from penstock import Fail, FinishedJob, Job, Penstock, Retries, Retry
from protect import PENSTOCK

AI_SERVICE_URL = os.environ.get("AI_SERVICE_URL") or "http://127.0.0.1:8001"
CALL_SECONDS = float(os.environ.get("AI_SERVICE_TIMEOUT") or 120)

app = Penstock(name="essays")
queue = app.queue(
    "essays",
    concurrency=8,
    # Two calls to the model, each within its own limit, and a minute for the rest.
    timeout=2 * CALL_SECONDS + 60,
    # For wrong or late answers: delays of 30, 60, 90 and 120 s.
    retry=Retries(attempts=5, backoff="linear", delay=os.environ.get("ESSAYS_RETRY_DELAY", "30s")),
)


@app.job(queue=queue, dedupe="submission_id")
async def analyze(submission_id: int, job: Job) -> dict[str, Any]:
    """Have an essay read and scored. The job contains only its id, not the text."""
    async with store.connected(await app.dsn()) as conn:
        essay = await store.load(conn, submission_id)
    if essay is None:
        raise Fail("The submission is no longer there.")

    async with job.stage("reading", label="Reading the essay"):
        # Each call costs money. Answers are kept, so a later attempt does not pay again.
        outline = await job.step("outline", _ask, job, "/read", _described(essay))
    await job.progress(1, 2)
    async with job.stage("scoring", label="Scoring the essay"):
        question = {"task": essay.task, "essay": essay.text, "outline": outline}
        result = await job.step("score", _ask, job, "/score", question)
    await job.progress(2, 2)
    return dict(result)


@analyze.on_finish
async def store_result(job: FinishedJob, conn: asyncpg.Connection) -> None:
    """Update our row in the transaction that finishes the job."""
    error = None if job.status == "succeeded" else why(job.status, job.error)
    await store.finish(conn, job.payload["submission_id"], result=job.result, error=error)


async def submit(pool: asyncpg.Pool, user: str, draft: Draft) -> int:
    """Store a submission, complete its task and queue its analysis in one transaction."""
    async with pool.acquire() as conn, conn.transaction():
        saved = await store.save(conn, user, draft)
        if saved.new:
            await store.complete_task(conn, user, draft.task, saved.id)
            ticket = await analyze.using(conn=conn, account=user).submit(submission_id=saved.id)
            await store.set_job(conn, saved.id, ticket.id)
    return saved.id


def watched(row: dict[str, Any]) -> dict[str, str] | None:
    """Return the job's address and a token; None if it has finished."""
    job = row["job"]
    if job is None or job["finished_at"] is not None:
        return None
    token = app.token(job=job["id"], ttl="1h", allow=["read", "cancel"])
    return {"src": f"{PENSTOCK}/v1/jobs/{job['id']}", "token": token}


def _described(essay: store.Essay) -> dict[str, Any]:
    image = essay.image
    return {
        "task": essay.task,
        "essay": essay.text,
        "image": image
        and {"type": image.type, "base64": base64.b64encode(image.data).decode("ascii")},
    }


async def _ask(job: Job, path: str, question: dict[str, Any]) -> dict[str, Any]:
    """Call the model; transient errors are retried, the others are final.

    Penstock handles an unavailable model: it knows httpx's errors, and an outage counts no failure,
    however long it is.
    """
    try:
        # For the whole call: the client's own limit restarts with every byte that arrives.
        async with asyncio.timeout(CALL_SECONDS), httpx.AsyncClient(timeout=CALL_SECONDS) as client:
            reply = await client.post(
                AI_SERVICE_URL.rstrip("/") + path,
                json=question,
                # The same in every attempt, so that a model that has answered need not work again.
                headers={"Idempotency-Key": job.key},
            )
    except (TimeoutError, httpx.TimeoutException):
        sentence = f"The model did not answer within {CALL_SECONDS:g} seconds."
        raise Retry(sentence, cls="timeout", public=True) from None
    if reply.status_code in {429, 503}:
        wait = reply.headers.get("retry-after", "")
        after = int(wait) if wait.isdecimal() else None
        raise Retry("The model is busy.", after=after, cls="overloaded", public=True)
    if reply.status_code >= 500:
        raise Retry(f"The model failed ({reply.status_code}).", cls="provider_error", public=True)
    if reply.status_code != 200:
        raise Fail(f"The model refused this essay ({reply.status_code}).", cls="refused")
    return _answer(reply)


def _answer(reply: httpx.Response) -> dict[str, Any]:
    try:
        answer = reply.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Retry("The model's answer could not be read.", cls="bad_output", public=True)
    return answer
