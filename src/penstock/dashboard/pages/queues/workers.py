"""Workers: who is there, who is silent, who was lost and what became of their jobs."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.wording import count, seconds
from penstock.dashboard.frame import backend, page, render

# What is said of a lost worker's jobs by the state they are in now, in this order.
_NOW = {
    "succeeded": "succeeded since",
    "running": "running again",
    "awaiting": "running again",
    "queued": "waiting to start again",
    "scheduled": "waiting to start again",
    "failed": "failed",
    "cancelled": "cancelled",
}


@page("/workers")
async def show(request: Request) -> Response:
    lists = backend(request).engine.lists
    found = await lists.workers()
    there = [worker for worker in found if worker["lost_at"] is None]
    losses = await lists.losses() if len(there) < len(found) else []
    return render(
        request,
        "queues/workers.html",
        there=there,
        seconds=seconds,
        alive=sum(worker["alive"] for worker in there),
        blocked=await lists.blocked_loops(),
        lost=[(loss, became(loss)) for loss in losses],
    )


def became(loss: dict[str, Any]) -> str:
    """`It had 3 jobs: 2 succeeded since, 1 waiting to start again`."""
    if not loss["jobs"]:
        return "It had no job."
    by_words: dict[str, int] = {}
    for status, words in _NOW.items():
        if number := loss["now"].get(status, 0):
            by_words[words] = by_words.get(words, 0) + number
    left = loss["jobs"] - sum(by_words.values())
    if left > 0:
        by_words["being given back"] = left
    told = ", ".join(f"{number:,} {words}" for words, number in by_words.items())
    return f"It had {count(loss['jobs'], 'job')}: {told}."
