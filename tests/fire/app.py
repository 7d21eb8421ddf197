"""The app of the campaign. Its handlers log what they do in the folder FIRE_FOLDER.

fast     quick, sync                 short handlers, in the loop and in a thread
model    ask, declared (fire.toml)   call a model: from Python, and by a declared handler
narrow   one                         one at a time, in strict order
paid     paint                       images for credits, recorded by `on_finish`
slow     long, child                 steps and stages; a handler process
back     outside                     dispatched; clients call back
loop     block, stroll               one blocks the event loop, the other runs beside it
odd      odd, odd_sync               raise exceptions that Python treats specially

With FIRE_WITHOUT=kind,kind it is a version of the app that lacks these kinds.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from fire.logs import Act, Log, Word, model_name
from penstock import Fail, Job, Retries
from penstock.client.config.toml import load
from penstock.engine.jobs.on_finish import FinishedJob

FOLDER = Path(os.environ["FIRE_FOLDER"])
MODEL = os.environ["FIRE_MODEL"]
RECEIVER = os.environ["FIRE_RECEIVER"]
WORKER = os.environ.get("PENSTOCK_WORKER_ID", "")

MODEL_SECONDS = 6.0
STEP_SECONDS = 1.0
PRICE_EACH = 2
# Longer than any attempt, because the outage of a model may last longer than one.
SOON = Retries(attempts=3, backoff="constant", delay="1s")

app = load(Path(__file__).with_name("fire.toml"))
app.queue("fast", retry=SOON)
app.queue("narrow", concurrency=1, order="strict", retry=SOON)
app.queue("paid", retry=SOON)
app.queue("slow", retry=SOON)
# A dispatched job whose worker was killed before it called the function: no callback will come.
app.queue("back", timeout="15s", retry=Retries(attempts=30, backoff="constant", delay="1s"))
app.queue("loop", timeout="6s", retry=SOON)
app.queue("odd", timeout="15s", retry=SOON)
app.plan("none", default=True)
app.plan("three", concurrency=3)
app.plan("single", concurrency=1)

_log = Log(FOLDER)


def note(job: Job | FinishedJob, word: Word) -> None:
    _log.write(
        Act(
            job=str(job.id),
            attempt=job.attempt,
            tag=job.payload["tag"],
            word=word,
            kind=job.kind,
            worker=WORKER,
        )
    )


class Noted:
    """Log the beginning of a handler, and its end if it gets there."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> None:
        note(self._job, "start")
        if self._job.payload.get("fails"):
            raise Fail("meant to fail")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            note(self._job, "end")
        elif issubclass(kind, asyncio.CancelledError):
            note(self._job, "cancelled")


@app.job(queue="fast")
async def quick(job: Job, tag: str, fails: bool = False) -> str:  # noqa: ARG001
    with Noted(job):
        return tag


@app.job(queue="fast")
def sync(job: Job, tag: str, seconds: float = 0.05) -> str:
    with Noted(job):
        time.sleep(seconds)
        return tag


@app.job(queue="model", webhook=f"{RECEIVER}/ask")
async def ask(job: Job, tag: str) -> dict[str, Any]:
    with Noted(job):
        note(job, "model")
        request = {
            "model": model_name(tag, job.attempt),
            "messages": [{"role": "user", "content": f"tag={tag} attempt={job.attempt}"}],
            "stream": False,
        }
        async with httpx.AsyncClient(timeout=MODEL_SECONDS, trust_env=False) as client:
            answer = await client.post(f"{MODEL}/api/chat", json=request)
        answer.raise_for_status()
        text: str = answer.json()["message"]["content"]
        return {"attempt": job.attempt, "characters": len(text)}


@app.job(queue="narrow", webhook=f"{RECEIVER}/one")
async def one(job: Job, tag: str, seconds: float = 0.05, fails: bool = False) -> str:  # noqa: ARG001
    with Noted(job):
        await asyncio.sleep(seconds)
        return tag


@app.job(queue="paid", price={"per": "images", "each": PRICE_EACH})
async def paint(job: Job, tag: str, images: int, fails: bool = False) -> dict[str, Any]:  # noqa: ARG001
    with Noted(job):
        # Sometimes it delivers less than was ordered: the rest is refunded.
        delivered = images - (len(tag) + images) % 3 // 2
        await job.charge(units=0)
        for number in range(1, delivered + 1):
            await asyncio.sleep(0.1)
            await job.charge(units=number)
        return {"images": delivered}


@paint.on_finish
async def keep(job: FinishedJob, conn: asyncpg.Connection) -> None:
    await conn.execute(
        "insert into public.fire_done (job_id, attempt) values ($1, $2)", job.id, job.attempt
    )
    note(job, "on_finish")


@app.job(queue="slow", timeout="2m")
async def long(job: Job, tag: str, seconds: float) -> dict[str, Any]:
    with Noted(job):
        first = await job.step("first", _step, tag, job.attempt)
        done = 0.0
        while done < seconds:
            async with job.stage(f"part{int(done) % 3}"):
                await asyncio.sleep(min(STEP_SECONDS, seconds - done))
                done += STEP_SECONDS
                await job.progress(min(done, seconds), seconds)
            if int(done) % 5 == 0:
                await job.emit(f"{done:.0f} ")
        last = await job.step("last", _step, tag, job.attempt)
        assert first["attempt"] <= last["attempt"]
        return {"first": first, "last": last}


async def _step(tag: str, attempt: int) -> dict[str, Any]:
    return {"tag": tag, "attempt": attempt}


@app.job(queue="slow", isolation="process", timeout="2m")
def child(job: Job, tag: str, seconds: float = 0.2) -> str:
    with Noted(job):
        time.sleep(seconds)
        return tag


@app.job(queue="back")
async def outside(job: Job, tag: str) -> None:  # noqa: ARG001
    """Dispatch to an outside function by a line in a file, which clients.callbacks reads."""
    with Noted(job):
        handed = await job.hand_over()
        handover = {
            "job_id": str(job.id),
            "attempt": job.attempt,
            "token": handed.token,
            "path": f"/v1/callbacks/{job.id}",
        }
        with (FOLDER / "handed.jsonl").open("a") as file:
            file.write(json.dumps(handover) + "\n")


@app.job(queue="loop", timeout="1m")
async def block(job: Job, tag: str, seconds: float) -> str:
    """Block the loop: this job has time enough, but others in the same worker have not."""
    with Noted(job):
        note(job, "block")
        time.sleep(seconds)  # noqa: ASYNC251  # that is what it is for
        note(job, "unblock")
        return tag


@app.job(queue="loop")
async def stroll(job: Job, tag: str, seconds: float) -> str:
    with Noted(job):
        await asyncio.sleep(seconds)
        return tag


class MuteError(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def _raise(how: str) -> None:
    match how:
        case "stop":
            raise StopIteration(how)
        case "stop_async":
            raise StopAsyncIteration(how)
        case _:
            raise MuteError


@app.job(queue="odd")
async def odd(job: Job, tag: str, how: str, fails: bool) -> None:  # noqa: ARG001
    note(job, "start")
    _raise(how)


@app.job(queue="odd")
def odd_sync(job: Job, tag: str, how: str, fails: bool) -> None:  # noqa: ARG001
    note(job, "start")
    _raise(how)


for _kind in filter(None, os.environ.get("FIRE_WITHOUT", "").split(",")):
    del app.kinds[_kind]
