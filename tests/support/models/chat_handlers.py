"""The handlers of both chat protocols, each at a simulated model."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.models import ollama, openai
from penstock.models.handlers.protocols import Handler
from penstock.models.prompt import read_prompt
from penstock.models.simulated.model import Model
from support.models.noted_job import at
from support.waiting import eventually

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}, "feedback": {"type": "string"}},
    "required": ["score", "feedback"],
    "additionalProperties": False,
}
ESSAY = {"answer": "Photosynthesis turns light into sugar, because leaves hold chlorophyll. " * 20}
# For a model that sends nothing; every other fault is noticed at once, also on a busy machine.
SHORT: dict[str, Any] = {"first_token_seconds": 0.4, "stall_seconds": 0.3}
PATIENT_SECONDS = 20


def ollama_config(model: Model, *, local_only: bool = False, **more: Any) -> ollama.Ollama:
    endpoint = at(f"{model.url}/api/chat", local_only=local_only)
    return ollama.Ollama(**{**_usual("llama3"), "endpoint": endpoint, **more})


def openai_config(model: Model, **more: Any) -> openai.OpenAI:
    endpoint = openai.endpoint_of(at(model.url))
    return openai.OpenAI(**{**_usual("gpt-5-mini"), "endpoint": endpoint, **more})


def _usual(name: str) -> dict[str, Any]:
    return {
        "model": name,
        "prompt": read_prompt("Give feedback on: {answer}", ["answer"]),
        "first_token_seconds": PATIENT_SECONDS,
        "stall_seconds": PATIENT_SECONDS,
    }


@dataclass(frozen=True)
class Chat:
    name: str
    handler: Callable[..., Handler]
    """For this simulated model, with these options."""


OLLAMA = Chat("llama3", lambda model, **more: ollama.build(ollama_config(model, **more)))
OPENAI = Chat("gpt-5-mini", lambda model, **more: openai.build(openai_config(model, **more)))


async def nothing_left(model: Model, before: set["asyncio.Task[Any]"]) -> None:
    async def all_closed() -> bool:
        return all(call.ended_at is not None for call in model.calls)

    async def no_tasks() -> bool:
        return asyncio.all_tasks() <= before

    await eventually(all_closed, "the server sees the client go", seconds=1)
    await eventually(no_tasks, "no task is left", seconds=1)
