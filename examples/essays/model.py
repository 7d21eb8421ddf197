"""A small stand-in for the AI service: slow, like a real one, and with faults to order.

python -m essays.model --port 8001

POST /read, POST /score    what the job calls
POST /fault                {"mode": "ok" | "error" | "busy" | "refuse" | "garbage" | "hang"}
                           {"mode": "down", "seconds": 20}: the port is closed that long
GET  /calls                how often each call was paid for, by its Idempotency-Key
"""

import argparse
import asyncio
import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI, Header
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from essays import scoring

Key = Annotated[str, Header(alias="Idempotency-Key")]
Mode = Literal["ok", "error", "busy", "refuse", "garbage", "hang", "down"]


class Fault(BaseModel):
    mode: Mode
    seconds: float = 20
    path: str | None = None  # None: every call


class Question(BaseModel):
    task: str
    essay: str
    image: dict[str, str] | None = None
    outline: dict[str, Any] = {}


@dataclass
class State:
    fault: Fault = field(default_factory=lambda: Fault(mode="ok"))
    calls: Counter[str] = field(default_factory=Counter)
    server: uvicorn.Server | None = None
    down_seconds: float = 0


state = State()
service = FastAPI(title="A small model")


@service.post("/read")
async def read(question: Question, idempotency_key: Key) -> Response:
    answer = scoring.outline(question.essay, question.image)
    return await _answered("/read", question, idempotency_key, answer)


@service.post("/score")
async def score(question: Question, idempotency_key: Key) -> Response:
    answer = scoring.score(question.task, question.essay, question.outline)
    return await _answered("/score", question, idempotency_key, answer)


@service.post("/fault")
async def order(fault: Fault) -> dict[str, bool]:
    state.fault = fault
    if fault.mode == "down" and state.server is not None:
        state.fault = Fault(mode="ok")  # once it is back
        state.down_seconds = fault.seconds
        state.server.should_exit = True
    return {"ok": True}


@service.get("/calls")
async def calls() -> dict[str, int]:
    return dict(state.calls)


async def _answered(path: str, question: Question, key: str, answer: dict[str, Any]) -> Response:
    state.calls[key] += 1
    mode = state.fault.mode if state.fault.path in {None, path} else "ok"
    match mode:
        case "error":
            return JSONResponse({"error": "out of memory"}, 500)
        case "busy":
            return JSONResponse({"error": "busy"}, 503, headers={"retry-after": "1"})
        case "refuse":
            return JSONResponse({"error": "not an essay"}, 422)
        case "garbage":
            return PlainTextResponse("<html>Bad gateway</html>")
        case "hang":
            # The server has a flag instead of an event.
            while state.server and not state.server.should_exit:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            return JSONResponse({"error": "going away"}, 503)
    await asyncio.sleep(_seconds(question.essay) / 2)
    return JSONResponse(answer)


def _seconds(essay: str) -> float:
    """Return the duration of both calls: 2 to 5 seconds, the same for the same essay."""
    fixed = os.environ.get("MODEL_SECONDS")
    return float(fixed) if fixed else 2 + hashlib.sha256(essay.encode()).digest()[0] / 85


async def main(port: int) -> None:
    config = uvicorn.Config(service, port=port, log_level="warning", timeout_graceful_shutdown=1)
    while True:
        state.server = uvicorn.Server(config)
        state.down_seconds = 0
        await state.server.serve()
        if not state.down_seconds:
            return
        await asyncio.sleep(state.down_seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="essays.model", description="A small model, with faults.")
    parser.add_argument("--port", type=int, default=8001)
    asyncio.run(main(parser.parse_args().port))
