"""The studio example as its users meet it: customers, its operator, and a model that fails."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from journeys.processes import EXAMPLES, LOOK_SECONDS, Program, drain, free_port
from support.signing import SECRET
from support.waiting import eventually

FOLDER = EXAMPLES / "studio"
# Nothing that customers write may be printed by any program: `Studio.end` looks for this word.
MARK = "Zitronenfalter"
PROMPT = f"A {MARK} over a lake"
HEADERS = {"X-Requested-With": "studio"}
CODE = "only-the-operator"
PNG = b"\x89PNG\r\n\x1a\n"
# Whole journeys: processes start, a model takes its time, and two of them share two cores.
PATIENCE_SECONDS = 60

# The plans go round.
PLANS = 4
FREE, STARTER, GROWTH, PRO = (f"customer-{number}" for number in range(1, PLANS + 1))
ENDED = ("completed", "failed", "cancelled")

Shown = dict[str, Any]


def urls_of(shown: Shown) -> list[str]:
    """Where the pictures of an order are that have come."""
    return [one["url"] for one in shown["pictures"] if one["state"] == "ready"]


class Customer:
    """Somebody in front of a browser."""

    def __init__(self, client: httpx.AsyncClient, account: str) -> None:
        self.client = client
        self.account = account

    async def sign_in(self) -> None:
        answer = await self.client.post("/sign-in", data={"customer": self.account})
        assert answer.status_code == 303, answer.text

    async def press_generate(self, *, key: str | None = None, **fields: Any) -> httpx.Response:
        """What is not said is right: four pictures of standard quality."""
        right = {"job_type": "freestyle", "prompt": PROMPT, "images": 4, "quality": "standard"}
        headers = {**HEADERS, "Idempotency-Key": key or uuid4().hex}
        return await self.client.post(
            "/api/enqueue-generation", json={**right, **fields}, headers=headers
        )

    async def order(self, **fields: Any) -> Shown:
        answer = await self.press_generate(**fields)
        assert answer.status_code == 201, answer.text
        found: Shown = answer.json()
        return found

    async def ask(self, path: str) -> Shown:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found

    async def look(self, job_id: str) -> Shown:
        found: Shown = (await self.ask(f"/api/generations/{job_id}"))["generation"]
        return found

    async def has(self) -> Shown:
        found: Shown = (await self.ask("/api/balance"))["account"]
        return found

    async def cancel(self, job_id: str) -> Shown:
        answer = await self.client.post(f"/api/generations/{job_id}/cancel", headers=HEADERS)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()["generation"]
        return found

    async def history(self) -> list[Shown]:
        """All of it, page by page."""
        found: list[Shown] = []
        before = ""
        while True:
            page = await self.ask(f"/api/history{before}")
            found += page["items"]
            if page["before"] is None:
                return found
            before = f"?before={page['before']}"

    async def picture(self, url: str) -> bytes:
        answer = await self.client.get(url)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "image/png"
        return answer.content

    async def sees(self, job_id: str, what: str, **wanted: Any) -> Shown:
        """Wait until the order shows these values; a tuple allows each of them."""
        found: Shown = {}

        async def shown() -> bool:
            found.update(await self.look(job_id))
            return all(
                found[name] in value if isinstance(value, tuple) else found[name] == value
                for name, value in wanted.items()
            )

        try:
            await eventually(shown, what, seconds=PATIENCE_SECONDS, poll=LOOK_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}; at the end: {found}") from None
        return found

    async def sees_end(self, job_id: str) -> Shown:
        return await self.sees(job_id, "the order has ended", status=ENDED)

    # As the operator, in the same browser.

    async def become_operator(self) -> None:
        answer = await self.client.get("/operator", params={"code": CODE})
        assert answer.status_code == 303, answer.text

    async def buy(self, reference: str | None = None) -> Shown:
        body = {"reference": reference or uuid4().hex}
        answer = await self.client.post("/api/operator/credits", json=body, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        found: Shown = answer.json()
        return found


class Studio:
    """Web app, model and workers, each to be started and ended by itself."""

    def __init__(self, dsn: str, folder: Path, customers: int = 5) -> None:
        self._folder = folder
        self.web_port = free_port()
        self.model_port = free_port()
        self.control_port = free_port()
        self.env = {
            "PENSTOCK_DSN": dsn,
            "PENSTOCK_SECRET": SECRET,
            "IMAGE_URL": f"http://127.0.0.1:{self.model_port}",
            "MODEL_CONTROL_URL": f"http://127.0.0.1:{self.control_port}",
            "STUDIO_OPERATOR_CODE": CODE,
            "STUDIO_SECRET": "the same for all starts",
            "STUDIO_CUSTOMERS": str(customers),
        }
        self.programs: list[Program] = []
        self._given: Counter[str] = Counter()

    def newcomer(self, like: str = PRO) -> str:
        """A customer of the same plan who has not been here before."""
        self._given[like] += 1
        return f"customer-{int(like.rpartition('-')[2]) + PLANS * self._given[like]}"

    def start_web(self) -> Program:
        words = ["uvicorn", "studio.app:web", "--port", str(self.web_port)]
        # On a slow machine five seconds pass between two clicks; a connection that the server has
        # just closed then looks like a crash.
        words += ["--timeout-keep-alive", str(PATIENCE_SECONDS), "--timeout-graceful-shutdown", "8"]
        return self._start("web", words, self.web_port)

    def start_model(self, *options: str) -> Program:
        at = ("--port", str(self.model_port), "--control", str(self.control_port))
        pace = options or ("--latency", "0.05", "--slots", "4")
        return self._start("model", ["penstock", "model", *at, *pace], self.model_port)

    def start_worker(self, name: str = "worker") -> Program:
        self.env["PENSTOCK_WORKER_ID"] = name
        return self._start(name, ["penstock", "worker", "studio.jobs:app"], None)

    def _start(self, name: str, words: list[str], port: int | None) -> Program:
        program = Program(["-m", *words], self.env, self._folder / f"{name}.log", port=port)
        self.programs.append(program)
        return program

    def end(self) -> None:
        """End all at once; nobody's prompt has been printed."""
        for program in self.programs:
            program.ask_to_end()
        for program in self.programs:
            program.end()
        for program in self.programs:
            assert MARK not in program.printed, program.words

    def settle(self) -> None:
        """For the next test: nothing in work, and a model that is well."""
        for path in ("/_heal", "/_start"):
            url = f"http://127.0.0.1:{self.control_port}{path}"
            httpx.post(url, trust_env=False).raise_for_status()
        drain(self.env["PENSTOCK_DSN"], self.programs)

    async def fault(self, **fault: Any) -> None:
        """Tell the model to misbehave."""
        await self.command("/_order", {"path": "/v1/images", **fault})

    async def slow_after(self, pictures: int, seconds: float = 30) -> None:
        """These come soon; the next one takes long enough to do something meanwhile."""
        await self.fault(fault="delay", by=0.05, times=pictures)
        await self.fault(fault="delay", by=seconds, times=1)

    async def report(self) -> list[Shown]:
        """What was asked of the model."""
        calls: list[Shown] = (await self.command("/_calls", method="GET"))["calls"]
        return calls

    async def command(self, path: str, body: Any = None, *, method: str = "POST") -> Any:
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{self.control_port}{path}"
            return (await client.request(method, url, json=body)).raise_for_status().json()


@contextmanager
def running(dsn: str, folder: Path, *, model: bool = True, customers: int = 5) -> Iterator[Studio]:
    """Web app and model; a worker when the test starts one."""
    site = Studio(dsn, folder, customers)
    try:
        # Side by side: most of a start is Python reading files.
        started = [site.start_web(), *([site.start_model()] if model else [])]
        for program in started:
            program.wait_ready()
        yield site
    finally:
        site.end()


@asynccontextmanager
async def customer(site: Studio, account: str = PRO) -> AsyncIterator[Customer]:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{site.web_port}", trust_env=False, timeout=PATIENCE_SECONDS
    ) as client:
        person = Customer(client, account)
        await person.sign_in()
        yield person
