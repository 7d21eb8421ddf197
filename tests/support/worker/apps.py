"""The app of the worker tests' processes. Its handlers append lines to the file WORKER_LOG.

A handler that holds runs until the file of its gate exists, so that a test decides when it returns.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import asyncpg

from penstock import Job, Penstock, Retries, Retry
from penstock.engine.jobs.on_finish import FinishedJob

AT_ONCE = Retries(attempts=3, backoff="constant", delay="0s")
GATE_SECONDS = 0.01

app = Penstock(name="worker tests")
app.queue("q", retry=AT_ONCE, timeout="10m", stuck_after="20m")
app.queue("idle")


def note(job: Job, word: str) -> None:
    """Append one line; several processes may do so at once."""
    line = f"{job.id} {job.attempt} {word} {os.getpid()} {time.time():.3f}\n"
    fd = os.open(os.environ["WORKER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


@app.job(queue="idle")
async def rest() -> None:
    return


@app.job(queue="q")
async def hold(job: Job, gate: str) -> dict[str, Any]:
    note(job, "start")
    await opened(gate)
    note(job, "end")
    return {"attempt": job.attempt, "pid": os.getpid()}


@app.job(queue="q")
async def hold_first(job: Job, gate: str) -> dict[str, Any]:
    """Holds only in its first attempt."""
    note(job, "start")
    try:
        if job.attempt == 1:
            await opened(gate)
    except asyncio.CancelledError:
        note(job, "dropped")
        raise
    note(job, "end")
    return {"attempt": job.attempt}


@app.job(queue="q")
async def keep_and_hold(job: Job, gate: str) -> dict[str, Any]:
    def dear() -> int:
        note(job, "step")
        return job.attempt

    kept = await job.step("dear", dear)
    note(job, "kept")
    if job.attempt == 1:
        await opened(gate)
    return {"attempt": job.attempt, "kept": kept}


@app.job(queue="q")
async def nap(job: Job, seconds: float) -> dict[str, Any]:
    note(job, "start")
    await asyncio.sleep(seconds)
    note(job, "end")
    return {"attempt": job.attempt, "pid": os.getpid()}


@app.job(queue="q")
async def later(job: Job, seconds: float) -> int:
    """Asks for a second attempt, after a while."""
    note(job, "start")
    if job.attempt == 1:
        raise Retry(after=seconds)
    return job.attempt


@app.job(queue="q")
async def block(job: Job, seconds: float) -> dict[str, Any]:
    """Blocks the event loop, as it should not."""
    note(job, "start")
    time.sleep(seconds)  # noqa: ASYNC251
    note(job, "end")
    return {"attempt": job.attempt}


@app.job(queue="q")
async def hang_first(job: Job, gate: str) -> int:
    """Its first attempt blocks the event loop until the gate opens."""
    note(job, "start")
    while job.attempt == 1 and not Path(gate).exists():  # noqa: ASYNC240
        time.sleep(GATE_SECONDS)  # noqa: ASYNC251
    return job.attempt


@app.job(queue="q")
def hold_thread(job: Job, gate: str) -> dict[str, Any]:
    note(job, "start")
    while not Path(gate).exists():
        time.sleep(GATE_SECONDS)
    note(job, "end")
    return {"attempt": job.attempt}


@app.job(queue="q")
async def die(job: Job, gate: str) -> None:
    """Poison: it kills the worker that runs it."""
    note(job, "start")
    await opened(gate)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(queue="q")
async def paid(job: Job, gate: str) -> dict[str, Any]:
    note(job, "start")
    return {"attempt": job.attempt, "gate": gate}


@paid.on_finish
async def bill(job: FinishedJob, conn: asyncpg.Connection) -> None:
    await conn.execute("insert into bill (job_id, attempt) values ($1, $2)", job.id, job.attempt)
    if job.result is not None and job.attempt == 1:
        note_id(str(job.id), "billed")
        await opened(job.result["gate"])


def note_id(job: str, word: str) -> None:
    fd = os.open(os.environ["WORKER_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{job} 0 {word} {os.getpid()} {time.time():.3f}\n".encode())
    os.close(fd)


_gates: dict[str, "asyncio.Task[None]"] = {}


async def opened(gate: str) -> None:
    """One poll of a file for all that wait for it."""
    if gate not in _gates:
        _gates[gate] = asyncio.get_running_loop().create_task(_poll(gate))
    await asyncio.shield(_gates[gate])


async def _poll(gate: str) -> None:
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240  # a file has no event
        await asyncio.sleep(GATE_SECONDS)
