"""Load on a site over HTTP: submits with keys, looks, streams, callbacks. No request may fail."""

import asyncio
import itertools
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx

from support.waiting import eventually
from upgrade.programs import Server, Site
from upgrade.upgraded import PRICE

ACCOUNTS = ("u1", "u2", "u3")
MONEY = 1_000_000
CLIENTS = 4
PAUSE_SECONDS = 0.03
FINAL = ("succeeded", "failed", "cancelled", "expired")
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when it was begun, how long it took."""

    what: str
    at: float
    seconds: float


class Traffic:
    def __init__(self, site: Site, conn: asyncpg.Connection) -> None:
        self._site = site
        self._conn = conn
        self._stop = asyncio.Event()
        self.asked: list[Asked] = []
        self.failed: list[str] = []
        self.jobs: dict[str, str] = {}
        """By key: the job that was answered."""
        self.paid = 0
        self.watched = 0
        self.called_back = 0
        self.changes = 0
        """The events of open streams of topics."""

    async def prepare(self) -> None:
        for account in ACCOUNTS:
            await self._conn.execute(
                "select penstock.grant_credits($1, $2, 'test')", account, MONEY
            )

    @property
    def longest(self) -> Asked:
        return max(self.asked, key=lambda asked: asked.seconds)

    def longest_since(self, at: float) -> float:
        """Of the requests that were open then or begun later."""
        return max((a.seconds for a in self.asked if a.at + a.seconds >= at), default=0.0)

    async def _ask(self, server: Server, method: str, path: str, **given: Any) -> httpx.Response:
        began = time.monotonic()
        what = f"{method} {path.split('/')[2]}"
        server.open += 1
        try:
            answer = await server.client.request(method, path, **given)
        except httpx.HTTPError as error:
            self.failed.append(f"{what} at {server.name}: {type(error).__name__} {error}")
            raise
        finally:
            server.open -= 1
        self.asked.append(Asked(what, began, time.monotonic() - began))
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            self.failed.append(f"{what} at {server.name}: {answer.status_code} {answer.text}")
        return answer

    async def _submit(self, kind: str, key: str, account: str) -> str | None:
        body = {
            "kind": kind,
            "payload": {"tag": key},
            "account": account,
            "topic": f"of-{account}",
        }
        answer = await self._ask(
            self._site.server, "POST", "/v1/jobs", json=body, headers={"Idempotency-Key": key}
        )
        return answer.json()["id"] if answer.is_success else None

    async def _client(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            kind = ("quick", "paid", "outside", "quick", "paid")[number % 5]
            key, account = uuid.uuid4().hex, random.choice(ACCOUNTS)
            with suppress(httpx.HTTPError):
                job = await self._submit(kind, key, account)
                if job is None:
                    continue
                self.jobs[key] = job
                self.paid += kind == "paid"
                if number % 5 == 4 and await self._submit(kind, key, account) != job:
                    self.failed.append(f"{key} was given another job than {job}")
                if number % 10 == 0:
                    await self._watch(job)
                else:
                    await self._ask(self._site.server, "GET", f"/v1/jobs/{job}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _watch(self, job: str) -> None:
        """The stream of one job, to its end; on another server when its own leaves."""
        while not await self._follow(job):
            pass
        self.watched += 1

    async def _follow(self, job: str) -> bool:
        """Whether the job has come to its end."""
        server = self._site.server
        path = f"/v1/jobs/{job}/events"
        try:
            async with server.client.stream("GET", path, timeout=END_SECONDS) as response:
                if not response.is_success:
                    self.failed.append(f"stream at {server.name}: {response.status_code}")
                    return True
                async for line in response.aiter_lines():
                    if _is_final(line):
                        return True
        except httpx.HTTPError as error:
            if not server.leaves.is_set():
                self.failed.append(f"stream at {server.name}: {type(error).__name__} {error}")
                return True
        else:
            if not server.leaves.is_set():
                self.failed.append(f"stream at {server.name} ended too early")
                return True
        return False

    async def _topic(self, account: str) -> None:
        """A page that stays open, on whichever server is there."""
        while not self._stop.is_set():
            server = self._site.server
            try:
                path = f"/v1/topics/of-{account}/events"
                async with server.client.stream("GET", path, timeout=END_SECONDS) as response:
                    async for line in response.aiter_lines():
                        self.changes += line.startswith("data")
                        if self._stop.is_set():
                            return
                        if server.leaves.is_set():
                            break
            except httpx.HTTPError as error:
                if not server.leaves.is_set():
                    self.failed.append(f"topic at {server.name}: {type(error).__name__} {error}")
                    return

    async def _function(self) -> None:
        """The function outside: it reports of all that was handed to it."""
        done = 0
        while True:
            for handed in self._site.handed(done):
                done += 1
                body = {
                    "job_id": handed["job_id"],
                    "token": handed["token"],
                    "status": "succeeded",
                    "result": done,
                }
                path = f"/v1/callbacks/{handed['job_id']}"
                with suppress(httpx.HTTPError):
                    answer = await self._ask(self._site.server, "POST", path, json=body)
                    if answer.is_success:
                        outcome = answer.json()["results"][0]["outcome"]
                        self.called_back += outcome == "accepted"
                        if outcome != "accepted":
                            self.failed.append(f"callback: {outcome}")
            await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Load inside the block; at its end, all jobs have come to theirs."""
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self._client()) for _ in range(CLIENTS)]
            beside = [group.create_task(self._topic(account)) for account in ACCOUNTS]
            beside.append(group.create_task(self._function()))
            try:
                yield
                self._stop.set()
                await asyncio.wait(clients)
                assert not self.failed, f"{len(self.failed)} failed, first: {self.failed[:3]}"
                await self._until_finished()
            finally:
                for task in [*clients, *beside]:
                    task.cancel()

    async def some_more(self, jobs: int = 20) -> None:
        """Return when so many more were submitted."""
        wanted = len(self.jobs) + jobs

        async def enough() -> bool:
            return len(self.jobs) >= wanted or bool(self.failed)

        await eventually(enough, f"{jobs} more submits", seconds=END_SECONDS)

    async def _until_finished(self) -> None:
        async def all_finished() -> bool:
            return not await self._conn.fetchval("select count(*) from penstock.job")

        try:
            await eventually(all_finished, "all jobs end", seconds=END_SECONDS, poll=0.05)
        except AssertionError as error:
            left = await self._conn.fetch(
                "select k.name, j.status::text, j.attempt, j.failures, j.error, j.run_at, count(*)"
                " from penstock.job j join penstock.kind k on k.id = j.kind_id"
                " group by 1, 2, 3, 4, 5, 6 order by 7 desc limit 5"
            )
            raise AssertionError(f"{error}: {left}; failed: {self.failed[:3]}") from None

    async def judge(self) -> None:
        """Nothing failed, every job ended well, once, and was paid for once."""
        assert not self.failed, f"{len(self.failed)} failed, first: {self.failed[:3]}"
        rows = await self._conn.fetch(
            "select id, status::text, attempt, failures from penstock.finished"
        )
        assert sorted(str(row["id"]) for row in rows) == sorted(self.jobs.values())
        odd = [dict(row) for row in rows if (row["status"], row["failures"]) != ("succeeded", 0)]
        assert not odd, odd[:3]
        ran = self._site.ran()
        assert len({(job, attempt) for job, attempt, _ in ran}) == len(ran), "a start ran twice"
        # A stopping worker releases jobs that it has not begun: a second attempt is no fault.
        assert len(ran) == len({job for job, _, _ in ran}), "a handler was called again"
        spent = await self._conn.fetchval(
            "select sum($1 - balance)::bigint from penstock.account where name = any($2)",
            MONEY,
            list(ACCOUNTS),
        )
        assert spent == PRICE * self.paid
        assert self._site.faults() == []
        assert min(self.watched, self.called_back, self.changes) > 0

    async def longest_rest(self) -> float:
        """Seconds between the ends of two jobs, at most."""
        found: float = await self._conn.fetchval(
            "select coalesce(extract(epoch from max(rest)), 0)::float from ("
            " select finished_at - lag(finished_at) over (order by finished_at) as rest"
            " from penstock.finished) f"
        )
        return found


def _is_final(line: str) -> bool:
    name, _, value = line.partition(": ")
    event = json.loads(value) if name == "data" else None
    return isinstance(event, dict) and event.get("status") in FINAL
