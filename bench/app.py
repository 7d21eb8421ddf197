"""The app whose jobs are measured: its handlers do nothing, or only wait."""

import asyncio
import time
from pathlib import Path
from typing import Any

from penstock import Job, Penstock


def build(dsn: str | None = None) -> Penstock:
    """Build an app for one database; without an address, for PENSTOCK_DSN."""
    app = Penstock(dsn, name="bench")
    # Accounts get the first plan at their first submit. Jobs without an account have none.
    app.plan("one", concurrency=1)
    plain = app.queue("plain")
    laned = app.queue("laned")
    held = app.queue("held", timeout="1h")

    @app.job(queue=plain)
    async def noop() -> dict[str, Any]:
        return {}

    @app.job(queue=plain)
    async def mark(answer: str) -> dict[str, Any]:
        return {"letters": len(answer)}

    @app.job(queue=laned)
    async def noop_laned() -> dict[str, Any]:
        return {}

    @app.job(queue=plain)
    async def stamp() -> dict[str, Any]:
        return {"at": time.time_ns()}

    @app.job(queue=held)
    async def wait(seconds: float) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {}

    @app.job(queue=held)
    async def hold(path: str, job: Job) -> None:
        with Path(path).open("a") as file:  # noqa: ASYNC230  # the moment is the measurement
            file.write(f"{time.time_ns()} {job.attempt}\n")
        await asyncio.sleep(3_600)

    return app
