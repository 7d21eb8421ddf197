"""All queues: what waits, what runs, and which of them need somebody."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.components import options
from penstock.dashboard.components.queue_state import HELD, Standing, standings
from penstock.dashboard.frame import backend, page, render

# Fewer than that are seen at a glance.
FILTER_FROM = 10


@page("/queues")
async def show(request: Request) -> Response:
    found = await backend(request).engine.lists.standings()
    rows = stand(found["queues"], found["now"])
    by_name = {queue["name"]: queue for queue in found["queues"]}
    wanted = request.query_params.get("q", "").strip()
    only = request.query_params.get("only") == "trouble"
    shown = [
        (by_name[row.name], row)
        for row in rows
        if wanted.lower() in row.name.lower() and (is_troubled(row) or not only)
    ]
    filtered = bool(wanted) or only
    return render(
        request,
        "queues/queues.html",
        queues=shown,
        total=len(rows),
        troubled=sum(is_troubled(row) for row in rows),
        is_troubled=is_troubled,
        wanted=wanted,
        only=only,
        filtered=filtered,
        with_filter=len(rows) >= FILTER_FROM or filtered,
        options={option.name: option for option in options.QUEUE},
    )


def stand(queues: list[dict[str, Any]], now: str) -> list[Standing]:
    """In words, those that are stopped first."""
    return standings({"now": now, "queues": queues, "ended": {"queues": {}}})


def is_troubled(row: Standing) -> bool:
    """Something stops it, or nothing explains why its jobs wait."""
    return row.rank <= HELD
