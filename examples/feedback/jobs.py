"""Submits texts: the row and its job in one transaction. penstock.toml declares the job."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg

from feedback import status, store
from feedback.forms import Draft
from feedback.tasks import TASKS
from penstock.client.config.toml import load
from protect import PENSTOCK

# Ollama's default address and a common model; workers need the same settings.
os.environ["OLLAMA_URL"] = os.environ.get("OLLAMA_URL") or "http://127.0.0.1:11434"
os.environ["OLLAMA_MODEL"] = os.environ.get("OLLAMA_MODEL") or "llama3.2"

CONFIG = Path(os.environ.get("FEEDBACK_CONFIG") or Path(__file__).with_name("penstock.toml"))
QUEUE_ON = os.environ.get("ENABLE_ASYNC_FEEDBACK", "true").lower() not in ("false", "0", "no")
# With the queue off, a submit waits for the model: for its turn, and then up to its timeout.
ANSWER_SECONDS = 150.0
POLL_SECONDS = 0.1
SETTLE_SECONDS = 2.0
# The topic of all jobs of the class: its page watches them over one stream.
TOPIC = "klasse"

app = load(CONFIG)
if not QUEUE_ON:
    app.queues["ollama"] = replace(app.queues["ollama"], inline=True)
give_feedback = app.kinds["give_feedback"]


async def submit(pool: asyncpg.Pool, pupil: str, draft: Draft) -> int:
    """Store a text and queue its feedback in one transaction, without waiting for the model.

    With the queue off, wait for the model's answer or failure.
    """
    async with pool.acquire() as conn, conn.transaction():
        saved = await _save(conn, pupil, draft)
    if saved.new and not QUEUE_ON:
        await _first_answer(pool, pupil, saved.id)
    return saved.id


async def submit_all(pool: asyncpg.Pool, drafts: list[tuple[str, Draft]]) -> None:
    """Submit the texts of a whole simulated class in one transaction."""
    async with pool.acquire() as conn, conn.transaction():
        for pupil, draft in drafts:
            await _save(conn, pupil, draft, simulated=True)


async def _save(
    conn: store.Connection, pupil: str, draft: Draft, *, simulated: bool = False
) -> store.Saved:
    saved = await store.save(conn, pupil, draft, simulated=simulated)
    if saved.new:
        ticket = await give_feedback.using(conn=conn, topic=TOPIC).submit(
            submission_id=saved.id, task=TASKS[draft.task].text, answer=draft.answer
        )
        await store.set_job(conn, saved.id, ticket.id)
    return saved


def watched(row: store.Row) -> dict[str, str] | None:
    """Return the job's address and a token; None if it has finished and our row has everything."""
    job = row["job"]
    if job is None or status.now(row)["feedback_status"] in status.FINISHED:
        return None
    token = app.token(job=job["id"], ttl="1h", allow=["read", "cancel"])
    return {"src": f"{PENSTOCK}/v1/jobs/{job['id']}", "token": token}


def watched_class() -> dict[str, str]:
    """Return address and token of all jobs of the class, for reading only."""
    token = app.token(topic=TOPIC, ttl="1h")
    return {"src": f"{PENSTOCK}/v1/topics/{TOPIC}", "token": token}


async def _first_answer(pool: asyncpg.Pool, pupil: str, submission: int) -> None:
    ends = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < ends:
        async with pool.acquire() as conn:
            row = await store.read(conn, pupil, submission)
        if row is None or _has_answered(row):
            return
        await asyncio.sleep(POLL_SECONDS)


def _has_answered(row: store.Row) -> bool:
    """Whether the job has finished, or waiting is useless: an outage, or a failed attempt."""
    job: dict[str, Any] = row["job"] or {}
    found = status.now(row)["feedback_status"]
    tried = job.get("attempt", 0) > 0 or job.get("waiting_for") == "circuit_open"
    return found in status.FINISHED or (tried and found != "processing")


async def keep_settling(pool: asyncpg.Pool) -> None:
    """Copy outcomes of jobs into our rows at intervals: the rows outlive the queue's history."""
    while True:
        async with pool.acquire() as conn:
            for row in await store.unsettled(conn):
                found = status.now(row)
                if found["feedback_status"] in status.FINISHED:
                    await store.settle(conn, row["id"], found)
        await asyncio.sleep(SETTLE_SECONDS)
