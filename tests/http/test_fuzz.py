"""The whole OpenAPI document, called with valid and with invalid requests.

For any request: no server error, no status, form or content type that is not documented,
and a sound database afterwards. Half of the calls are about things that exist.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.http import kinds
from support.http.site import Site
from support.shapes import Scale

BASE = "http://penstock.test"
NOWHERE = "http://127.0.0.1:1/hook"
STREAM = "text/event-stream"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Calls that work, wait or watch take as long as their parameters say: here, not long.
SHORT_SECONDS = 0.05
FIRST_EVENT_SECONDS = 10
MOST_FAILURES = 10
HOW = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


@dataclass(slots=True)
class Things:
    """Existing values, by the name of the parameter or field."""

    found: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, *names: str, values: Sequence[Any]) -> None:
        for name in names:
            self.found.setdefault(name, []).extend(values)


async def furnish(site: Site) -> Things:
    """Jobs in every state, a batch, an upload, keys, webhooks, accounts with money."""
    kinds.declare(site)
    await site.make_account("acme", credits=1_000)
    await site.make_account("other", credits=1_000)
    things = Things()
    finished: list[dict[str, Any]] = [
        {"kind": "mark", "payload": {"answer": "a"}},
        {"kind": "refuse", "payload": {"why": "no"}},
        {"kind": "priced", "payload": {}},
    ]
    waiting: list[dict[str, Any]] = [
        {"kind": "mark", "payload": {"answer": "b"}, "webhook_url": NOWHERE},
        {"kind": "mark", "payload": {"answer": "c"}, "delay_seconds": 3600},
        {"kind": "priced", "payload": {}},
    ]
    jobs = [
        (await _post(site, "/v1/jobs", {**body, "account": account}))["id"]
        for account in ("acme", "other")
        for body in finished
    ]
    await site.work()
    jobs += [(await _post(site, "/v1/jobs", {**body, "account": "acme"}))["id"] for body in waiting]
    await _post(site, f"/v1/jobs/{jobs[-3]}/cancel", None)
    many = [{"kind": "mark", "payload": {"answer": "d"}, "account": "acme"}] * 3
    batch = await _post(site, "/v1/jobs/batch", {"jobs": many})
    file = {"file": ("a.txt", b"some text", "text/plain")}
    uploads = [
        (await site.app_client.post(f"/v1/uploads?account={one}", files=file)).json()["id"]
        for one in ("acme", "other")
    ]
    made = [
        await _post(site, "/v1/keys", {"kind": "account", "account": one})
        for one in ("acme", "other")
    ]
    webhooks = (await site.admin.get("/v1/webhooks")).json()["items"]
    things.add("job_id", "job", values=[*jobs, batch["items"][0]["id"]])
    things.add("batch_id", "batch", values=[batch["batch"]])
    things.add("upload_id", values=uploads)
    things.add("key_id", values=[one["id"] for one in made])
    things.add("webhook_id", values=[one["id"] for one in webhooks])
    things.add("account", "account_id", values=["acme", "other"])
    things.add("id", values=["acme", "one more"])
    things.add("name", "queue", values=["line"])
    things.add("topic", values=["a1"])
    things.add("kind", values=["mark", "priced", "twin", "nested", "refuse"])
    things.add("plan", values=["free"])
    things.add("ref", values=["r1", "r2"])
    return things


@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", ["admin", "account"])
async def test_every_route_answers_as_its_document_says(
    site: Site, scale: Scale, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E14"""
    monkeypatch.setenv("PENSTOCK_ALLOW_PRIVATE", "1")  # for NOWHERE
    things = await furnish(site)
    client = site.client(
        await site.make_key("account", "acme") if who == "account" else None, raises=False
    )
    if who == "admin":
        client.headers["Authorization"] = site.admin.headers["Authorization"]
    fuzz = Fuzz(client, things, asyncio.get_running_loop())
    document = (await site.admin.get("/openapi.json")).json()
    for operation in _operations(document):
        await asyncio.to_thread(fuzz.walk, operation, scale(8, 200))
    assert fuzz.calls > 300
    assert not fuzz.failures, "\n\n".join(fuzz.failures[:MOST_FAILURES])


class Fuzz:
    """Runs in a thread, as Hypothesis requires; its calls run in the server's loop."""

    def __init__(
        self, client: httpx.AsyncClient, things: Things, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._client = client
        self._things = things
        self._loop = loop
        self._random = random.Random(6)
        self.calls = 0
        self.failures: list[str] = []

    def walk(self, operation: Any, examples: int) -> None:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            wrong = list(self._walk(operation, mode, examples))
            self.failures += wrong[:2]

    def _walk(self, operation: Any, mode: GenerationMode, examples: int) -> Iterator[str]:
        wrong: list[str] = []
        strategy = operation.as_strategy(generation_mode=mode)

        @hypothesis.settings(HOW, max_examples=examples)
        @hypothesis.given(strategy)
        def one(case: Any) -> None:
            if len(wrong) < MOST_FAILURES:
                fault = self._check(case)
                if fault is not None:
                    wrong.append(fault)

        with suppress(hypothesis.errors.Unsatisfiable):  # it has no invalid form
            one()
        yield from wrong

    def _check(self, case: Any) -> str | None:
        self._ground(case)
        try:
            prepared = requests.Request(**case.as_transport_kwargs(base_url=BASE)).prepare()
        except (requests.RequestException, UnicodeError):
            return None  # no client can send it
        headers = {
            name: value
            for name, value in prepared.headers.items()
            if name.lower() not in ("authorization", "prefer", "accept-encoding")
        }
        made = self._client.build_request(
            prepared.method or "", prepared.url or "", content=prepared.body or b"", headers=headers
        )
        answer = asyncio.run_coroutine_threadsafe(self._send(made), self._loop).result(60)
        self.calls += 1
        if answer.headers.get("content-type", "").startswith(STREAM):
            assert answer.content.startswith((b"event:", b"id:", b"retry:", b":")), answer.content
            checks = CHECKS[:-1]
        else:
            checks = CHECKS
        try:
            case.validate_response(answer, checks=checks)
        except (Failure, FailureGroup) as error:
            return f"{case.operation.label}\n{made.url}\n{made.content!r}\n{_words(error)}"
        return None

    async def _send(self, made: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(FIRST_EVENT_SECONDS):
            answer = await self._client.send(made, stream=True)
            if answer.headers.get("content-type", "").startswith(STREAM):
                first = await anext(answer.aiter_raw())
                await answer.aclose()
                begun = httpx.Response(
                    answer.status_code, headers=answer.headers, content=first, request=made
                )
                begun.elapsed = timedelta(0)
                return begun
            await answer.aread()
            await answer.aclose()
            return answer

    def _ground(self, case: Any) -> None:
        """Make most calls about existing things, and make all of them short."""
        if self._random.random() < 0.7:
            for part in (case.path_parameters, case.query, case.body):
                self._fill(part)
                jobs = part.get("jobs") if isinstance(part, dict) else None
                for one in jobs if isinstance(jobs, list) else ():
                    self._fill(one)
        if isinstance(case.body, dict) and isinstance(case.body.get("seconds"), int | float):
            case.body["seconds"] = min(case.body["seconds"], SHORT_SECONDS)
        elif case.operation.path.endswith("/process") and case.method == "POST":
            case.body = {"seconds": SHORT_SECONDS}

    def _fill(self, part: Any) -> None:
        if not isinstance(part, dict):
            return
        for name in part:
            known = self._things.found.get(name)
            if known and self._random.random() < 0.8:
                part[name] = self._random.choice(known)
        if "payload" in part and isinstance(part["payload"], dict):
            part["payload"] = self._random.choice(
                [{"answer": "x"}, {"key": "k"}, {"answers": []}, {"why": "no"}, part["payload"]]
            )


def _operations(document: dict[str, Any]) -> list[Any]:
    schema = schemathesis.openapi.from_dict(document)
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


async def _post(site: Site, path: str, body: Any) -> dict[str, Any]:
    answer = await site.admin.post(path, json=body)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _words(error: BaseException) -> str:
    inner: Callable[[Any], Any] = lambda one: getattr(one, "exceptions", [one])  # noqa: E731
    return "\n".join(str(one) for one in inner(error))[:1_500]
