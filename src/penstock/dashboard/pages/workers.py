"""The page of workers: alive, silent, and lost ones with what became of their jobs."""

from collections import Counter
from typing import Any

from penstock.base.wording import count
from penstock.dashboard.frame import (
    Request,
    Response,
    backend,
    page,
    render,
)

# The words for the jobs of a lost worker, by their present status, in this order.
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
    workers = await lists.workers()
    present = [worker for worker in workers if worker["lost_at"] is None]
    losses = await lists.losses() if len(present) < len(workers) else []
    return render(
        request,
        "queues/workers.html",
        present=present,
        alive=sum(worker["alive"] for worker in present),
        blocked=await lists.blocked_loops(),
        lost=[(loss, _became(loss)) for loss in losses],
    )


def _became(loss: dict[str, Any]) -> str:
    """Return `It had 3 jobs: 2 succeeded since, 1 waiting to start again`."""
    if not loss["jobs"]:
        return "It had no jobs."
    jobs = Counter[str]()
    for status, words in _NOW.items():
        jobs[words] += loss["now"].get(status, 0)
    jobs["being released"] = loss["jobs"] - jobs.total()
    parts = ", ".join(f"{number:,} {words}" for words, number in jobs.items() if number > 0)
    return f"It had {count(loss['jobs'], 'job')}: {parts}."
