"""An app whose handlers have a secret in everything they touch, for test_secrets.py."""

import asyncio
import sys
import threading
import time
from typing import Any

import asyncpg

from penstock import Cancel, Fail, Job, Penstock, Retries, Retry
from penstock.engine.jobs.on_finish import FinishedJob

MARK = "Zanzibar-1964"

app = Penstock(name="loud")
app.queue("loud", retry=Retries(attempts=2, backoff="constant", delay="0s"), timeout="10m")

release = threading.Event()


@app.job(queue="loud")
async def report_all(job: Job, text: str) -> dict[str, str]:
    async with job.stage(f"stage {text}"[:200], label=text):
        await job.progress(1, 2, partial={text: text})
        await job.emit(text)
        await job.emit({text: text})
        await job.step(f"step {text}"[:200], lambda: text)
        await job.usage(**{text: 1})
    return {text: text}


@app.job(queue="loud")
def report_all_in_thread(job: Job, text: str) -> dict[str, str]:
    with job.stage(f"stage {text}"[:200], label=text):
        job.progress(1, 2, partial={text: text})
        job.emit(text)
        job.step(f"step {text}"[:200], lambda: text)
    return {text: text}


@app.job(queue="loud", isolation="process")
def report_all_in_process(job: Job, text: str, how: str = "") -> dict[str, str]:
    with job.stage(f"stage {text}"[:200], label=text):
        job.progress(1, 2, partial={text: text})
        job.emit(text)
        job.step(f"step {text}"[:200], lambda: text)
    if how == "raise":
        raise ValueError(text)
    return {text: text}


@app.job(queue="loud")
async def go_wrong(text: str, how: str) -> Any:
    match how:
        case "raise":
            raise ValueError(text) from KeyError(text)
        case "group":
            raise ExceptionGroup(text, [ValueError(text)])
        case "exit":
            sys.exit(text)
        case "fail":
            raise Fail(text)
        case "retry":
            raise Retry(text, after=0)
        case "cancel":
            raise Cancel(text)
        case "result":
            return {text: {text}}
        case "task":
            await asyncio.gather(_raise(text), _raise(text))
    return None


async def _raise(text: str) -> None:
    raise ValueError(text)


@app.job(queue="loud")
def go_wrong_in_thread(text: str) -> None:
    raise ValueError(text)


@app.job(queue="loud", timeout=0.2, attempts=1)
async def take_long(text: str) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError(text) from None
    return text


@app.job(queue="loud", timeout=0.2, attempts=1)
def take_long_in_thread(text: str) -> None:
    release.wait(10)
    raise ValueError(text)


@app.job(queue="loud")
async def be_cancelled(job: Job, text: str) -> str:
    while not job.cancelled:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    raise ValueError(text)


@app.job(queue="loud")
async def be_late(job: Job, text: str) -> str:
    if job.attempt == 1:
        time.sleep(0.5)  # noqa: ASYNC251  # meanwhile it is declared lost
    return text


@app.job(queue="loud", attempts=1)
async def be_billed(text: str) -> str:
    return text


@be_billed.on_finish
async def bill(job: FinishedJob, _: asyncpg.Connection) -> None:
    raise ValueError(f"{job.payload} {job.result}")
