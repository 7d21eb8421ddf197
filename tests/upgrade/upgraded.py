"""The app of the upgrade tests, run by two versions of Penstock at a time.

What its handlers do is appended to UPGRADE_LOG, and what they hand over to UPGRADE_HANDED.
"""

import asyncio
import json
import os

from penstock import Job, Penstock

PRICE = 2

app = Penstock(name="upgrade")
app.queue("fast")
app.queue("narrow", concurrency=4)
app.queue("back", timeout="1m")
app.plan("two", concurrency=2, default=True)


def _append(variable: str, line: str) -> None:
    """One line, which several processes may append at once."""
    fd = os.open(os.environ[variable], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def note(job: Job) -> None:
    _append("UPGRADE_LOG", f"{job.id} {job.attempt} {os.environ['UPGRADE_NAME']}")


@app.job(queue="fast")
async def quick(job: Job, tag: str) -> str:
    note(job)
    return tag


@app.job(queue="narrow", price=PRICE)
async def paid(job: Job, tag: str) -> str:
    note(job)
    await job.progress(1, 2)
    kept: str = await job.step("kept", lambda: tag)
    await asyncio.sleep(0.02)
    return kept


@app.job(queue="back")
async def outside(job: Job, tag: str) -> None:  # noqa: ARG001  # part of the payload
    note(job)
    handed = await job.hand_over()
    handover = {"job_id": str(job.id), "attempt": job.attempt, "token": handed.token}
    _append("UPGRADE_HANDED", json.dumps(handover))
