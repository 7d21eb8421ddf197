"""The scanner example as its users meet it: authors, its operator, and workers that die."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx

from journeys.processes import EXAMPLES, Program, close_up
from journeys.site import Shown, Site, Visitor, accepted, having, opened, seen, visiting

FOLDER = EXAMPLES / "scanner"
# Nothing that authors write may be printed by any program: `Site.end` looks for this word.
MARK = "Zitronenfalter"
TEXT = f"# Notes\nA {MARK} was here.\n"
CODE = "only-the-operator"
ENDED = ("PUBLISHED", "REJECTED")


class Author(Visitor):
    """Somebody who submits packages."""

    async def press_submit(self, *, key: str | None = None, **fields: Any) -> httpx.Response:
        """What is not said is right."""
        right = {"name": "tidy-logs", "text": TEXT, "behaviour": "normal"}
        headers = {"Idempotency-Key": key or uuid4().hex}
        return await self.client.post(
            "/api/v1/submissions", json={**right, **fields}, headers=headers
        )

    async def submit(self, behaviour: str = "normal", **fields: Any) -> str:
        answer = await self.press_submit(behaviour=behaviour, **fields)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["id"]
        return found

    async def look(self, submission: str) -> Shown:
        return await self.ask(f"/api/v1/submissions/{submission}")

    async def sees(self, submission: str, what: str, **wanted: Any) -> Shown:
        """Wait until the submission shows these values; a tuple allows each of them.

        `stale`, `count` and `next_at` are those of staleness and recovery.
        """

        async def look() -> Shown:
            found = await self.look(submission)
            recovery = found["recovery"]
            own = {"count": recovery["count"], "next_at": recovery["nextRetryAfter"]}
            return {**found, "stale": found["staleness"]["stale"], **own}

        return await seen(look, having(**wanted), what)

    async def sees_end(self, submission: str) -> Shown:
        return await self.sees(submission, "the submission has ended", state=ENDED)

    async def follow(self, submission: str) -> tuple[list[tuple[str, bool, int]], Shown]:
        """State, late or not, and recoveries, each time one of them changed; and the end."""
        steps: list[tuple[str, bool, int]] = []

        def ended(found: Shown) -> bool:
            now = (found["state"], found["staleness"]["stale"], found["recovery"]["count"])
            if steps[-1:] != [now]:
                steps.append(now)
            return found["state"] in ENDED

        found = await seen(lambda: self.look(submission), ended, "the submission has ended")
        return steps, found

    # As the operator.

    async def ask_operator(self, path: str, secret: str | None = CODE) -> httpx.Response:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return await self.client.get(f"/api/v1/admin/queue/{path}", headers=headers)

    async def operator_sees(self, path: str) -> Shown:
        return accepted(await self.ask_operator(path))


class Scanner(Site):
    """Web app and workers."""

    example = "scanner"
    private = MARK

    def __init__(
        self, dsn: str, folder: Path, *, scale: float = 1, tier_seconds: float = 0.2
    ) -> None:
        super().__init__(dsn, folder)
        self.env |= {
            "SCANNER_ADMIN_SECRET": CODE,
            "SCANNER_TIME_SCALE": f"{scale:g}",
            "SCANNER_TIER_SECONDS": f"{tier_seconds:g}",
        }
        self.workers: dict[str, Program] = {}

    def start_worker(self, name: str = "worker", **env: str) -> Program:
        self.workers[name] = super().start_worker(name, **env)
        return self.workers[name]

    def settle(self) -> None:
        """For the next test: nobody at work, and nothing in work."""
        self.workers.clear()
        close_up(self.env["PENSTOCK_DSN"], self.programs)

    async def worker_of(self, conn: asyncpg.Connection) -> str:
        """Who runs the only job that runs."""
        name: str = await conn.fetchval(
            "select w.name from penstock.job j join penstock.worker w on w.id = j.worker_id"
        )
        return name


def running(dsn: str, folder: Path, **options: float) -> AbstractContextManager[Scanner]:
    """The web app; workers when the test starts them."""
    site = Scanner(dsn, folder, **options)
    return opened(site, site.start_web)


@asynccontextmanager
async def author(site: Scanner) -> AsyncIterator[Author]:
    async with visiting(site) as client:
        yield Author(client)
