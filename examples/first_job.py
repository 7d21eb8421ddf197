"""The first job, from submit to result, while a worker is killed.

    python examples/first_job.py

One queue stands in front of a model that can do one thing at a time. Three pupils submit at once,
one of them clicks twice, and the first worker is killed while it runs a job: another one takes
over, which only the table at the end shows.
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock import Job, Penstock

console = Console(highlight=False)
app = Penstock(name="first_job")
ollama = app.queue("ollama", concurrency=1, timeout="10s")


@app.job(queue=ollama, dedupe="pupil")
async def feedback(pupil: str, answer: str, job: Job) -> str:
    async with job.stage("thinking", label="The model reads the answer"):
        await asyncio.sleep(
            0.5
        )  # here a model would be called, with job.key as its idempotency key
    return f"To {pupil}: {len(answer.split())} words, and a good point."


async def main() -> None:
    answers = {
        "pupil 1": "Because light scatters.",
        "pupil 2": "The sea is blue.",
        "pupil 3": "It reflects the sea.",
    }
    console.print("Starting an embedded Postgres in a temporary folder …")
    rows = [{"pupil": pupil, "answer": answer} for pupil, answer in answers.items()]
    tickets = await feedback.submit_many(rows)
    console.print(f"Three pupils submit: {len(tickets)} jobs in one transaction.")
    again = await feedback.submit(**rows[0])
    console.print(f"The first one clicks twice: deduplicated={again.deduplicated}, the same job.")

    first, second = [await start_worker() for _ in range(2)]
    while (await tickets[0].status())["status"] == "queued":  # noqa: ASYNC110  # in a database
        await asyncio.sleep(0.02)
    holder = (await tickets[0].status())["stage_label"]
    console.print(f"A worker has started ({holder or 'claimed'}), and one of the two is killed …")
    first.send_signal(signal.SIGKILL)
    results = [await ticket.result(timeout=30) for ticket in tickets]

    table = Table(title="The jobs in the database")
    for column in ("status", "attempts", "outcomes", "feedback"):
        table.add_column(column)
    for ticket, result in zip(tickets, results, strict=True):
        job = await ticket.status()
        outcomes = ", ".join(attempt["outcome"] for attempt in job["attempts"])
        table.add_row(job["status"], str(job["attempt"]), outcomes, result)
    console.print(table)
    engine = await app.engine()
    broken = await engine.upkeep.check()
    console.print(f"penstock.check() found {len(broken)} breaches of invariants.")
    for worker in (first, second):
        if worker.returncode is None:
            worker.terminate()
        await worker.wait()
    await app.close()


async def start_worker() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "penstock", "worker", "first_job:app"),
        cwd=Path(__file__).parent,
        stdout=asyncio.subprocess.DEVNULL,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        os.environ["PENSTOCK_HOME"] = folder + "/home"
        asyncio.run(main())
