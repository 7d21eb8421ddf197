"""What there is so far, told by one model, three pupils and a worker that dies.

    make demo

One queue stands in front of one model that can do one thing at a time. Jobs are submitted in one
transaction, run one by one, a double click is recognised, a failure is tried again, a worker
falls silent and loses its job to another, and its late answer does not count.
"""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.db.connect import connect_ready, located
from penstock.engine import Engine
from penstock.engine.jobs import NewJob
from penstock.engine.outcomes import Error, Retry, Succeeded
from penstock.settings import Settings

console = Console(highlight=False)
ANSWERS = {1: "Because light scatters.", 2: "The sea is blue.", 3: "It reflects."}


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        settings = Settings(home=Path(folder) / "home")
        console.print("Starting an embedded Postgres in a folder that goes with this demo …")
        # The schema comes with the first connection; the server runs while somebody uses it.
        async with (
            located(settings) as dsn,
            connect_ready(settings),
            await Engine.open(dsn) as engine,
        ):
            await story(engine)


async def story(engine: Engine) -> None:
    jobs = engine.jobs
    await engine.queues.declare("ollama", concurrency=1, delay_seconds=0)
    await engine.queues.declare_kind("feedback", "ollama", dedupe_field="pupil")

    def answer(pupil: int) -> NewJob:
        return NewJob(
            kind="feedback", payload={"pupil": f"pupil {pupil}", "answer": ANSWERS[pupil]}
        )

    tickets = await jobs.submit_many([answer(pupil) for pupil in ANSWERS])
    console.print(f"Three pupils submit at once: {len(tickets)} jobs, one transaction.")
    again = await jobs.submit(answer(1))
    console.print(f"The first clicks twice: deduplicated={again.deduplicated}, the same id.")

    calm = await engine.workers.register("calm")
    frail = await engine.workers.register("frail", lease=timedelta(seconds=1))
    [held] = await jobs.claim(frail, "ollama", 10)
    console.print("Worker frail asks for 10 jobs and gets 1: the model takes one at a time.")
    assert not await jobs.claim(calm, "ollama", 10)

    console.print("Frail falls silent; its lease of 1 s runs out …")
    while not (lost := await engine.upkeep.recover()):
        await engine.workers.beat(calm)
        await asyncio.sleep(0.1)
    console.print(f"Upkeep gives its job back: {lost[0].outcome}, now {lost[0].status}.")

    [retaken] = await jobs.claim(calm, "ollama", 1)
    [late] = await jobs.finish(frail, [(held, Succeeded({"feedback": "too late"}))])
    console.print(
        f"Calm starts it as attempt {retaken.attempt}. Frail wakes and reports attempt "
        f"{held.attempt}: [bold]{late.verdict}[/], nothing changed."
    )
    await jobs.finish(calm, [(retaken, Succeeded({"feedback": "Good point."}))])

    [shaky] = await jobs.claim(calm, "ollama", 1)
    await jobs.finish(calm, [(shaky, Retry(Error("overloaded", "the model is warming up")))])
    console.print("The model stumbles over the next one: it goes back and keeps its place.")
    while started := await jobs.claim(calm, "ollama", 1):
        await jobs.finish(calm, [(job, Succeeded({"feedback": "Well done."})) for job in started])

    table = Table(title="What the database says")
    for column in ("pupil", "status", "starts", "how they ended", "feedback"):
        table.add_column(column)
    for pupil, ticket in zip(ANSWERS, tickets, strict=True):
        job = await jobs.read(ticket.id)
        ended = ", ".join(start["outcome"] for start in job["attempts"])
        table.add_row(
            str(pupil), job["status"], str(job["attempt"]), ended, job["result"]["feedback"]
        )
    console.print(table)
    violations = await engine.upkeep.check()
    console.print(f"penstock.check() looked for a breach of every invariant: {len(violations)}.")
    await engine.workers.stop(calm)


asyncio.run(main())
