"""Large answers that their client does not read: counted by caller, and refused above a limit."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.http.middleware import limits as bounds
from penstock.http.middleware import requests
from penstock.http.middleware.limits import Limits
from penstock.http.middleware.requests import LARGE_BYTES, PIECE_BYTES
from support.http.half_sent import HalfSent
from support.http.site import SECRET, Site

RESULT = {"a": "x" * LARGE_BYTES}


class Unread(HalfSent):
    """A call whose client reads the head of an answer, and nothing more until it may."""

    def __init__(self, site: Site, path: str, key: str | None) -> None:
        super().__init__(site, path, [], key=key, method="GET")
        self.pieces: list[int] = []
        self.reads = asyncio.Event()

    async def _send(self, message: Any) -> None:
        await super()._send(message)
        if message["type"] == "http.response.body":
            self.pieces.append(len(message.get("body", b"")))
            if message.get("more_body"):
                await self.reads.wait()


@pytest.fixture(autouse=True)
def _kind(site: Site) -> None:
    site.penstock.queue("q")

    @site.penstock.job(queue="q", account="account")
    async def big(account: str) -> dict[str, str]:  # noqa: ARG001  # the owner
        return RESULT


async def run_job(site: Site, account: str) -> str:
    """The path of a job whose result makes an answer large."""
    body = {"kind": "big", "payload": {"account": account}}
    submitted = await site.app_client.post("/v1/jobs", json=body)
    assert submitted.status_code == 201, submitted.text
    await site.work()
    return f"/v1/jobs/{submitted.json()['id']}"


def limits_of(site: Site) -> Limits:
    found: Limits = site.api.state.limits
    return found


async def test_unread_answers_of_one_account_are_limited(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: with any of its keys; another account and the app read theirs."""
    monkeypatch.setattr(bounds, "ACCOUNT_ANSWER_BYTES", 2 * LARGE_BYTES)
    path = await run_job(site, "u1")
    keys = [await site.make_key("account", "u1") for _ in range(2)]
    first = Unread(site, path, keys[0])
    running = first.begin()
    await first.stuck()
    held = limits_of(site).answers.held
    assert held["account u1"] > LARGE_BYTES
    second = Unread(site, path, keys[1])
    await second.run()
    body = json.loads(second.answer)
    assert (second.status, body["code"]) == (429, "too_many_answers")
    assert second.headers[b"retry-after"] == b"2"
    theirs = await run_job(site, "u2")
    other = await site.account_client("u2")
    assert (await other.get(theirs)).json()["result"] == RESULT
    assert (await site.app_client.get(path)).json()["result"] == RESULT
    small = await site.client(keys[1]).get("/v1/accounts/u1")
    assert small.status_code == 200
    first.reads.set()
    await running
    assert json.loads(first.answer)["result"] == RESULT
    assert max(first.pieces) <= PIECE_BYTES
    assert held == {}
    assert (await site.client(keys[1]).get(path)).json()["result"] == RESULT


async def test_one_answer_may_have_any_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an account could have an answer that is too large for it to read."""
    monkeypatch.setattr(bounds, "ACCOUNT_ANSWER_BYTES", 1_000)
    path = await run_job(site, "u1")
    client = await site.account_client("u1")
    assert (await client.get(path)).json()["result"] == RESULT


async def test_unread_answers_of_all_accounts_are_limited(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: 503, since the caller is not the cause; the app's keys have their own limit."""
    path = await run_job(site, "u1")
    monkeypatch.setattr(bounds, "ACCOUNTS_BYTES", 100)
    monkeypatch.setattr(limits_of(site), "_settings", _Small())
    key = await site.make_key("account", "u1")
    calls = [Unread(site, path, key) for _ in range(2)]
    running = calls[0].begin()
    await calls[0].stuck()
    await calls[1].run()
    assert (calls[1].status, json.loads(calls[1].answer)["code"]) == (503, "server_busy")
    app = Unread(site, path, SECRET)
    app.reads.set()
    await app.run()
    assert app.status == 200
    calls[0].reads.set()
    await running


class _Small:
    account_bytes = 100


async def test_a_refused_answer_is_not_produced_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each piece of a download is a read of the database."""
    made = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield b"x" * PIECE_BYTES

    async def download(scope: Scope, receive: Receive, send: Send) -> None:
        size = {"content-length": str(100 * PIECE_BYTES)}
        await StreamingResponse(pieces(), headers=size)(scope, receive, send)

    async def refuse(scope: Scope, receive: Receive, send: Send, amount: int) -> bool:
        await Response(status_code=429)(scope, receive, send)
        return amount > 0

    monkeypatch.setattr(requests, "_refuse", refuse)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(requests.LargeAnswers(download)), base_url="http://t.test"
    ) as client:
        assert (await client.get("/")).status_code == 429
    assert made == 1
