"""The studio example as its users meet it: customers, its operator, and a model that fails."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from journeys.processes import EXAMPLES, drain
from journeys.site import Shown, SiteWithModel, Visitor, accepted, having, opened, seen, visiting

FOLDER = EXAMPLES / "studio"
# Nothing that customers write may be printed by any program: `Site.end` looks for this word.
MARK = "Zitronenfalter"
PROMPT = f"A {MARK} over a lake"
HEADERS = {"X-Requested-With": "studio"}
CODE = "only-the-operator"
PNG = b"\x89PNG\r\n\x1a\n"
# The plans go round.
PLANS = 4
FREE, STARTER, GROWTH, PRO = (f"customer-{number}" for number in range(1, PLANS + 1))
ENDED = ("completed", "failed", "cancelled")


def urls_of(shown: Shown) -> list[str]:
    """Where the pictures of an order are that have come."""
    return [one["url"] for one in shown["pictures"] if one["state"] == "ready"]


class Customer(Visitor):
    def __init__(self, client: httpx.AsyncClient, account: str) -> None:
        super().__init__(client)
        self.account = account

    async def sign_in(self) -> None:
        await self.sign_in_at("/sign-in", customer=self.account)

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

    async def look(self, job_id: str) -> Shown:
        found: Shown = (await self.ask(f"/api/generations/{job_id}"))["generation"]
        return found

    async def has(self) -> Shown:
        found: Shown = (await self.ask("/api/balance"))["account"]
        return found

    async def cancel(self, job_id: str) -> Shown:
        answer = await self.client.post(f"/api/generations/{job_id}/cancel", headers=HEADERS)
        found: Shown = accepted(answer)["generation"]
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
        return await seen(lambda: self.look(job_id), having(**wanted), what)

    async def sees_end(self, job_id: str) -> Shown:
        return await self.sees(job_id, "the order has ended", status=ENDED)

    # As the operator, in the same browser.

    async def become_operator(self) -> None:
        await self.enter("/operator", CODE)

    async def buy(self, reference: str | None = None) -> Shown:
        body = {"reference": reference or uuid4().hex}
        return accepted(await self.client.post("/api/operator/credits", json=body, headers=HEADERS))


class Studio(SiteWithModel):
    """Web app, model and workers."""

    example = "studio"
    private = MARK
    pace = ("--latency", "0.05", "--slots", "4")

    def __init__(self, dsn: str, folder: Path, customers: int = 5) -> None:
        super().__init__(dsn, folder, "IMAGE_URL")
        self.env |= {
            "STUDIO_OPERATOR_CODE": CODE,
            "STUDIO_SECRET": "the same for all starts",
            "STUDIO_CUSTOMERS": str(customers),
        }
        self._given: Counter[str] = Counter()

    def newcomer(self, like: str = PRO) -> str:
        """A customer of the same plan who has not been here before."""
        self._given[like] += 1
        return f"customer-{int(like.rpartition('-')[2]) + PLANS * self._given[like]}"

    def settle(self) -> None:
        """For the next test: nothing in work, and a model that is well."""
        self.heal()
        drain(self.env["PENSTOCK_DSN"], self.programs)

    async def fault(self, **fault: Any) -> None:
        """Tell the model to misbehave."""
        await self.order(path="/v1/images", **fault)

    async def slow_after(self, pictures: int, seconds: float = 30) -> None:
        """These come soon; the next one takes long enough to do something meanwhile."""
        await self.fault(fault="delay", by=0.05, times=pictures)
        await self.fault(fault="delay", by=seconds, times=1)

    async def calls(self) -> list[Shown]:
        calls: list[Shown] = (await self.report())["calls"]
        return calls


def running(
    dsn: str, folder: Path, *, model: bool = True, customers: int = 5
) -> AbstractContextManager[Studio]:
    """Web app and model; a worker when the test starts one."""
    site = Studio(dsn, folder, customers)
    return opened(site, site.start_web, *([site.start_model] if model else []))


@asynccontextmanager
async def customer(site: Studio, account: str = PRO) -> AsyncIterator[Customer]:
    async with visiting(site) as client:
        person = Customer(client, account)
        await person.sign_in()
        yield person
