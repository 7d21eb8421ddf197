"""Callers over HTTP: like correct clients they repeat with the same key until they are answered."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import httpx

from fire.clients.wanted import ACCOUNTS, Known, Wanted, wanted
from fire.logs import Ack, Fate
from fire.rules.jobs import GRANT
from fire.world import World

IDLE = (0.1, 0.7)
PAUSE = (0.05, 0.4)
# How long to retry after the end of the storm; during the storm callers retry without a limit.
LAST_SECONDS = 40.0
GIVE_UP = 0.02
REPEAT = 0.05
BATCH = (2, 12)
POOR = 40

_CONFLICT = {"idempotency_in_progress", "job_contended", "dedupe_contended", "conflict", "busy"}


@dataclass
class Answer:
    """The final answer; `doubt`: an earlier try may have taken effect, too."""

    response: httpx.Response | None
    doubt: bool

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status_code

    @property
    def fate(self) -> Fate:
        if self.response is not None and self.response.is_success:
            return "accepted"
        return "doubt" if self.response is None or self.doubt else "refused"

    @property
    def result(self) -> dict[str, Any]:
        """The body of a success."""
        if self.response is None or not self.response.is_success:
            return {}
        body: dict[str, Any] = self.response.json()
        return body

    @property
    def code(self) -> str | None:
        return None if self.response is None or self.response.is_success else _code(self.response)


@dataclass
class Caller:
    world: World
    name: str
    known: Known
    stop: asyncio.Event
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = self.world.chance(self.name)
        self._clients = [self.world.client(url) for url in self.world.urls]

    async def submit(self) -> None:
        """Submit one job after the other, each with a key."""
        for one in wanted(self.name, self.chance, brief=self.world.brief):
            if await self._rests():
                return
            answer = await self.insist("/v1/jobs", one.body, key=one.tag)
            self._note(one, answer, answer.result.get("id"), key=one.tag)
            if answer.result and self.chance.random() < REPEAT:  # although there was an answer
                again = await self.insist("/v1/jobs", one.body, key=one.tag)
                if again.result and again.result["id"] != answer.result["id"]:
                    self._note(one, again, again.result["id"], key=one.tag)  # two jobs: a breach

    async def submit_batches(self) -> None:
        """Submit without a key: a request without an answer stays in doubt."""
        asked = wanted(self.name, self.chance, brief=self.world.brief)
        while not await self._rests(3):
            jobs = list(islice(asked, self.chance.randint(*BATCH)))
            body = {"jobs": [one.body for one in jobs]}
            answer = await self.insist("/v1/jobs/batch", body, repeat=False)
            items = answer.result.get("items", [{"id": None}] * len(jobs))
            for one, item in zip(jobs, items, strict=True):
                self._note(one, answer, item["id"])

    async def cancel(self) -> None:
        while not await self._rests():
            if picked := self.known.pick(self.chance):
                await self.insist(f"/v1/jobs/{picked[0]}/cancel", {})

    async def retry(self) -> None:
        """Retry finished jobs; start scheduled ones now."""
        while not await self._rests(4):
            picked = self.known.pick(self.chance)
            if picked is None:
                continue
            job, tag = picked
            answer = await self.insist(f"/v1/jobs/{job}/retry", {}, repeat=False)
            if answer.fate == "refused" or answer.status == httpx.codes.OK:
                continue  # it has not finished; or it was scheduled, and runs now
            made = answer.result
            self.world.log.write(
                Ack(
                    client=self.name,
                    tag=tag,
                    kind=made.get("kind", ""),
                    fate=answer.fate,
                    account=made.get("account"),
                    job=made.get("id"),
                    status=answer.status,
                    code=answer.code,
                    retry_of=job,
                )
            )

    async def pay(self) -> None:
        """Buy credits for accounts that have few; sometimes send the same payment twice."""
        for number in count():
            if await self._rests(2):
                return
            account = self.chance.choice(ACCOUNTS)
            try:
                shown = await self._client().get(f"/v1/accounts/{account}")
            except httpx.TransportError:
                continue
            if not shown.is_success or shown.json()["balance"] > POOR:
                continue
            ref, amount = f"{self.name}-{number}", self.chance.randint(10, 120)
            for _ in range(2 if self.chance.random() < 0.2 else 1):
                body = {"amount": amount, "ref": ref}
                answer = await self.insist(f"/v1/accounts/{account}/credits", body)
                self.world.log.write(
                    Ack(
                        client=self.name,
                        tag=ref,
                        kind=GRANT,
                        fate=answer.fate,
                        account=account,
                        status=answer.status,
                        code=answer.code,
                    )
                )

    async def insist(
        self, path: str, body: Mapping[str, Any], *, key: str | None = None, repeat: bool = True
    ) -> Answer:
        """Repeat until there is an answer; sometimes, and at the very end, give up in doubt."""
        headers = {} if key is None else {"Idempotency-Key": key}
        doubt = False
        ends: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            if self.stop.is_set():
                ends = ends or loop.time() + LAST_SECONDS
                if loop.time() > ends:
                    return Answer(None, doubt=True)
            try:
                answer = await self._client().post(path, json=body, headers=headers)
            except httpx.TransportError as error:
                doubt |= not isinstance(error, httpx.ConnectError)
            else:
                if not answer.is_server_error and _code(answer) not in _CONFLICT:
                    return Answer(answer, doubt)
                doubt = True
            if doubt and (not repeat or self.chance.random() < GIVE_UP):
                return Answer(None, doubt=True)
            await asyncio.sleep(self.chance.uniform(*PAUSE))

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        return self.chance.choice(self._clients)

    async def _rests(self, times: float = 1) -> bool:
        """Pause for a moment; return whether the storm is over."""
        try:
            async with asyncio.timeout(self.chance.uniform(*IDLE) * times):
                await self.stop.wait()
        except TimeoutError:
            return False
        return True

    def _note(
        self, one: Wanted, answer: Answer, job: str | None, *, key: str | None = None
    ) -> None:
        if job is not None:
            self.known.jobs.append((job, one.tag))
        self.world.log.write(
            Ack(
                client=self.name,
                tag=one.tag,
                kind=one.kind,
                fate=answer.fate,
                key=key,
                account=one.account,
                job=job,
                status=answer.status,
                code=answer.code,
            )
        )


def _code(answer: httpx.Response) -> str | None:
    if answer.is_success:
        return None
    try:
        code: str | None = answer.json().get("code")
    except ValueError:
        return None
    return code
