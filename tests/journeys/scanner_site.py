"""The scanner example as its users meet it: authors, its operator, and workers that die."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx

from journeys.processes import EXAMPLES, LOOK_SECONDS, Program, close_up, free_port
from support.signing import SECRET
from support.waiting import eventually

FOLDER = EXAMPLES / "scanner"
# Nothing that authors write may be printed by any program: `Scanner.end` looks for this word.
MARK = "Zitronenfalter"
TEXT = f"# Notes\nA {MARK} was here.\n"
CODE = "only-the-operator"
ENDED = ("PUBLISHED", "REJECTED")
# Whole journeys: processes start, and two of them share two cores.
PATIENCE_SECONDS = 60

Shown = dict[str, Any]


class Author:
    """Somebody who submits packages."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

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
        answer = await self.client.get(f"/api/v1/submissions/{submission}")
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found

    async def sees(self, submission: str, what: str, **wanted: Any) -> Shown:
        """Wait until the submission shows these values; a tuple allows each of them.

        `stale`, `count` and `next_at` are those of staleness and recovery.
        """
        found: Shown = {}

        async def shown() -> bool:
            found.update(await self.look(submission))
            found["stale"] = found["staleness"]["stale"]
            found["count"] = found["recovery"]["count"]
            found["next_at"] = found["recovery"]["nextRetryAfter"]
            return all(
                found[name] in value if isinstance(value, tuple) else found[name] == value
                for name, value in wanted.items()
            )

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found}") from None
        return found

    async def sees_end(self, submission: str) -> Shown:
        return await self.sees(submission, "the submission has ended", state=ENDED)

    async def follow(self, submission: str) -> tuple[list[tuple[str, bool, int]], Shown]:
        """State, late or not, and recoveries, each time one of them changed; and the end."""
        seen: list[tuple[str, bool, int]] = []
        found: Shown = {}

        async def ended() -> bool:
            found.update(await self.look(submission))
            now = (found["state"], found["staleness"]["stale"], found["recovery"]["count"])
            if seen[-1:] != [now]:
                seen.append(now)
            return found["state"] in ENDED

        await eventually(
            ended, "the submission has ended", seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS
        )
        return seen, found

    # As the operator.

    async def ask_operator(self, path: str, secret: str | None = CODE) -> httpx.Response:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return await self.client.get(f"/api/v1/admin/queue/{path}", headers=headers)

    async def operator_sees(self, path: str) -> Shown:
        answer = await self.ask_operator(path)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found


class Scanner:
    """Web app and workers, each to be started and ended by itself."""

    def __init__(
        self, dsn: str, folder: Path, *, scale: float = 1, tier_seconds: float = 0.2
    ) -> None:
        self._folder = folder
        self.web_port = free_port()
        self.env = {
            "PENSTOCK_DSN": dsn,
            "PENSTOCK_SECRET": SECRET,
            "SCANNER_ADMIN_SECRET": CODE,
            "SCANNER_TIME_SCALE": f"{scale:g}",
            "SCANNER_TIER_SECONDS": f"{tier_seconds:g}",
        }
        self.programs: list[Program] = []
        self.workers: dict[str, Program] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    def start_web(self) -> Program:
        words = ["uvicorn", "scanner.app:web", "--port", str(self.web_port)]
        # On a slow machine five seconds pass between two clicks; a connection that the server has
        # just closed then looks like a crash.
        words += ["--timeout-keep-alive", str(PATIENCE_SECONDS), "--timeout-graceful-shutdown", "8"]
        return self._start("web", words, self.web_port)

    def start_worker(self, name: str = "worker", *, tier_seconds: float | None = None) -> Program:
        """With tiers that take this long, for this worker alone."""
        own = {"PENSTOCK_WORKER_ID": name}
        if tier_seconds is not None:
            own["SCANNER_TIER_SECONDS"] = f"{tier_seconds:g}"
        program = self._start(name, ["penstock", "worker", "scanner.jobs:app"], None, own)
        self.workers[name] = program
        return program

    def _start(
        self, name: str, words: list[str], port: int | None, own: Mapping[str, str] | None = None
    ) -> Program:
        env = {**self.env, **(own or {})}
        program = Program(["-m", *words], env, self._folder / f"{name}.log", port=port)
        self.programs.append(program)
        return program

    def settle(self) -> None:
        """For the next test: nobody at work, and nothing in work."""
        self.workers.clear()
        close_up(self.env["PENSTOCK_DSN"], self.programs)

    def end(self) -> None:
        """End all at once; nobody's package has been printed."""
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            program.end()
        for program in self.programs:
            assert MARK not in program.printed, program.words

    async def worker_of(self, conn: asyncpg.Connection) -> str:
        """Who runs the only job that runs."""
        name: str = await conn.fetchval(
            "select w.name from penstock.job j join penstock.worker w on w.id = j.worker_id"
        )
        return name


@contextmanager
def running(dsn: str, folder: Path, **options: float) -> Iterator[Scanner]:
    """The web app; workers when the test starts them."""
    site = Scanner(dsn, folder, **options)
    try:
        site.start_web().wait_ready()
        yield site
    finally:
        site.end()


@asynccontextmanager
async def author(site: Scanner) -> AsyncIterator[Author]:
    async with httpx.AsyncClient(
        base_url=site.address, trust_env=False, timeout=PATIENCE_SECONDS
    ) as client:
        yield Author(client)
