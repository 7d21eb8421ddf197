"""What the studio sells as Penstock jobs: plans, prices, the work itself, and the history.

A worker runs this module:  penstock worker studio.jobs:app
"""

import os
from typing import Annotated, Any

import asyncpg
import httpx
from pydantic import Field

from penstock import Fail, FinishedJob, Job, Penstock, Retries
from penstock.client.tickets import BatchTicket
from penstock.failures.verdict import Charge
from studio import model, store
from studio.forms import Order
from studio.kinds import IMAGES_PER_JOB, JOB_SECONDS, LONGEST_PROMPT, MOST_IMAGES, SOLD, Quality

Prompt = Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT)]
Images = Annotated[int, Field(ge=1, le=MOST_IMAGES)]

app = Penstock(name="studio")

# Lower priorities go first; whoever is new goes ahead once. The first plan is for strangers, unless
# another app of the same database says otherwise.
app.plan("free", priority=50, concurrency=1, per_hour=10, first_job=-20)
app.plan("pro", priority=10, concurrency=4, per_hour=999, weight=8, first_job=-20)
app.plan("growth", priority=20, concurrency=3, per_hour=100, first_job=-20)
app.plan("starter", priority=30, concurrency=2, per_hour=50, first_job=-20)

queue = app.queue(
    "studio",
    concurrency=int(os.environ.get("STUDIO_CONCURRENCY") or 4),
    timeout=JOB_SECONDS,
    stale_after="3m",
    stuck_after="5m",
    retry=Retries(attempts=3, backoff="linear", delay="5s"),
)
SPLIT = ("images", IMAGES_PER_JOB)


@app.job(queue=queue, price=SOLD["tryon"].price, split=SPLIT)
async def tryon(prompt: Prompt, images: Images, quality: Quality, job: Job) -> dict[str, Any]:
    return await _draw(job, prompt, images, quality)


@app.job(queue=queue, price=SOLD["product"].price, split=SPLIT)
async def product(prompt: Prompt, images: Images, quality: Quality, job: Job) -> dict[str, Any]:
    return await _draw(job, prompt, images, quality)


@app.job(queue=queue, price=SOLD["freestyle"].price, split=SPLIT)
async def freestyle(prompt: Prompt, images: Images, quality: Quality, job: Job) -> dict[str, Any]:
    return await _draw(job, prompt, images, quality)


@app.job(queue=queue, price=SOLD["workflow"].price, split=SPLIT)
async def workflow(prompt: Prompt, images: Images, quality: Quality, job: Job) -> dict[str, Any]:
    return await _draw(job, prompt, images, quality)


@app.job(queue=queue, price=SOLD["video"].price, split=SPLIT, priority_offset=10)
async def video(prompt: Prompt, images: Images, quality: Quality, job: Job) -> dict[str, Any]:
    return await _draw(job, prompt, images, quality)


KINDS = {kind.name: kind for kind in (tryon, product, freestyle, workflow, video)}


async def _draw(job: Job, prompt: str, images: int, quality: Quality) -> dict[str, Any]:
    """One picture after the other. One that cannot be drawn is not charged, and the rest goes on.

    Where the model itself is at fault, the job starts again later, after the pictures it has.
    """
    order = SOLD[job.kind].order.format(prompt=prompt)
    pictures: list[dict[str, Any]] = []
    for number in range(1, images + 1):
        # Each call costs money: a drawn or refused picture is not requested again.
        drawn = await job.step(f"image {number}", _draw_one, job, number, order, quality)
        pictures.append(drawn)
        job.charge(units=sum("failed" not in one for one in pictures))
        await job.progress(number, images, partial={"pictures": pictures})
    failures = {one.get("failed") for one in pictures}
    if failures == {"refused"}:
        raise Fail("The model refused every image.", cls="refused")
    if None not in failures:
        raise Fail("Not one image came.", cls="provider_error")
    return {"pictures": pictures}


async def _draw_one(job: Job, number: int, order: str, quality: Quality) -> dict[str, Any]:
    try:
        png = await model.draw(order, quality, job.key)
    except model.NotDrawn as why:
        return {"number": number, "failed": str(why)}
    except (httpx.HTTPError, TimeoutError) as error:
        # A final error loses only this picture, not those that were drawn.
        charge = model.charge_of(error)
        if charge is Charge.FREE or (charge is not Charge.FINAL and await _may_fail(job)):
            raise
        return {"number": number, "failed": "broken"}
    async with store.connected(await app.dsn()) as conn:
        await store.keep_image(conn, job.id, number, job.account or "", png)
    return {"number": number}


async def _may_fail(job: Job) -> bool:
    """Whether the error is retryable."""
    async with store.connected(await app.dsn()) as conn:
        now = await store.read_job(conn, job.id)
    return bool(now["failures"] + 1 < now["max_attempts"])


async def record(job: FinishedJob, conn: asyncpg.Connection) -> None:
    """Write the history and keep paid pictures, in the transaction that finishes the job."""
    wanted, each = job.payload["images"], SOLD[job.kind].prices[job.payload["quality"]]
    now = await store.read_job(conn, job.id)
    pictures = _pictures(job, now)
    delivered = [one["number"] for one in pictures if "failed" not in one]
    if now["finished_at"] is not None and now["credits"] is not None:
        # Told afterwards, as of a job that was cancelled while it waited: it is settled already.
        delivered = delivered[: now["credits"]["charged"] // each]
        pictures = [one for one in pictures if "failed" in one or one["number"] in delivered]
    await store.drop_images(conn, job.id, but=delivered)
    await store.record(
        conn,
        job.id,
        job.account,
        job.kind,
        job.payload,
        status="completed" if job.status == "succeeded" else job.status,
        pictures=pictures,
        reserved=wanted * each,
        charged=len(delivered) * each,
        error_class=(job.error or {}).get("class"),
        created_at=job.created_at,
        completed_at=job.finished_at,
    )


for _kind in KINDS.values():
    _kind.on_finish(record)


def _pictures(job: FinishedJob, now: dict[str, Any]) -> list[dict[str, Any]]:
    """What came of it: all, or up to the moment in which it was cancelled, or why nothing did."""
    if job.status == "succeeded":
        found: list[dict[str, Any]] = job.result["pictures"]
        return found
    found = ((now["progress"] or {}).get("partial") or {}).get("pictures", [])
    return found if job.status == "cancelled" else [one for one in found if "failed" in one]


async def enqueue(
    pool: asyncpg.Pool, account: str, order: Order, key: str | None
) -> dict[str, Any]:
    """Reserve the credits, queue the jobs and store the order in one transaction."""
    async with pool.acquire() as conn, conn.transaction():
        using = KINDS[order.job_type].using(
            account=account,
            conn=conn,
            # Ours for each customer: a key that somebody else used as well is another one.
            idempotency_key=f"{account}:{key}" if key else None,
        )
        ticket = await using.submit(prompt=order.prompt, images=order.images, quality=order.quality)
        assert isinstance(ticket, BatchTicket)
        assert ticket.batch is not None
        await store.save(conn, account, order, ticket.batch, [one.id for one in ticket.tickets])
        job = await store.read_job(conn, ticket.id)
    return {
        "job_id": str(ticket.id),
        "batch": str(ticket.batch),
        "position": ticket.position,
        "priority": job["priority"],
        "new_balance": ticket.balance,
    }
