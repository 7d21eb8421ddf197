"""A receiver of webhooks that works, is slow, fails or hangs, depending on its mode.

python -m fire.receiver --port P --log FOLDER --secret whsec_… [--secret …] [--seed N]

POST /control {"mode": "fail"}    set the mode; GET /control returns it
POST to any other path            a message: it is logged, and answered by the mode

ok 200; fail 500 or 503; slow 200 after a while; hang no answer until the mode changes; reset the
connection breaks; flaky one of these each time.
"""

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from fire.logs import Log, Message

Mode = Literal["ok", "fail", "hang", "slow", "reset", "flaky"]

SLOW_SECONDS = (0.5, 4.0)


class Receiver:
    def __init__(self, log: Log, secrets: Sequence[str], seed: str = "") -> None:
        self._log = log
        self._secrets = [Webhook(secret) for secret in secrets]
        self._chance = random.Random(seed)
        self._mode: Mode = "ok"
        self._changed = asyncio.Event()
        self._answered: Counter[str] = Counter()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/control", self._show)
        app.router.add_post("/control", self._change)
        app.router.add_post("/{path:.*}", self._take)
        return app

    async def _show(self, _: web.Request) -> web.Response:
        return web.json_response({"mode": self._mode, "answered": dict(self._answered)})

    async def _change(self, request: web.Request) -> web.Response:
        mode = (await request.json())["mode"]
        if mode not in get_args(Mode):
            return web.json_response({"error": f"there is no mode {mode}"}, status=422)
        self._mode = mode
        self._changed.set()
        self._changed = asyncio.Event()
        return await self._show(request)

    async def _take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        mode = self._mode
        if mode == "flaky":
            mode = self._chance.choice(["ok", "ok", "fail", "slow", "reset"])
        match mode:
            case "hang":
                self._note(request, body, "hang")
                await self._changed.wait()
                return self._reset(request)
            case "reset":
                self._note(request, body, "reset")
                return self._reset(request)
            case "fail":
                status = self._chance.choice([500, 503])
            case "slow":
                await asyncio.sleep(self._chance.uniform(*SLOW_SECONDS))
                status = 200
            case _:
                status = 200
        self._note(request, body, status)
        return web.Response(status=status)

    @staticmethod
    def _reset(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)  # the client has disconnected

    def _note(self, request: web.Request, body: bytes, answered: int | str) -> None:
        message = _read(body)
        data = message.get("data")
        job: dict[str, Any] = data if isinstance(data, dict) else {}
        self._answered[str(answered)] += 1
        self._log.write(
            Message(
                id=request.headers.get("webhook-id", ""),
                job=job.get("id"),
                event=message.get("type"),
                status=job.get("status"),
                signature=self._is_genuine(request, body),
                answered=answered,
            )
        )

    def _is_genuine(self, request: web.Request, body: bytes) -> bool:
        for secret in self._secrets:
            try:
                secret.verify(body, dict(request.headers))
            except (WebhookVerificationError, ValueError):
                continue
            return True
        return False


def _read(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--secret", action="append", required=True)
    parser.add_argument("--seed", default="")
    given = parser.parse_args()
    receiver = Receiver(Log(given.log), given.secret, given.seed)
    web.run_app(
        receiver.app(),
        host="127.0.0.1",
        port=given.port,
        print=None,
        access_log=None,
        reuse_address=True,
        shutdown_timeout=0.1,
    )


if __name__ == "__main__":
    main()
