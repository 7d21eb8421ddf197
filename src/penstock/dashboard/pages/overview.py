"""The overview: the state of all queues, alerts, and what happened over time."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from penstock.dashboard.components import options
from penstock.dashboard.components.alerts import alerts
from penstock.dashboard.components.charts import Chart, stacked
from penstock.dashboard.components.queue_state import BUSY, queue_states, total
from penstock.dashboard.components.words import CLASSES
from penstock.dashboard.frame import (
    Request,
    Response,
    backend,
    page,
    render,
)
from penstock.engine.engine import Engine
from penstock.engine.queries.events import Batcher
from penstock.errors import PenstockError

# The ranges of the charts, by the hours in the address.
RANGES = {24: "24 hours", 168: "7 days", 720: "30 days"}
SHOWN_QUEUES = 12
SHOWN_WORKERS = 10
SHOWN_ALERTS = 6
SHOWN_CLASSES = 5
OUTCOMES = {
    "succeeded": ("Succeeded", "good"),
    "failed": ("Failed", "bad"),
    "cancelled": ("Cancelled", "dim"),
}
# The number of partitions changes once a day.
_AHEAD_SECONDS = 600
# The most steps of a roll-up at once: about a day.
_MOST_STEPS = 500


class Overviews:
    """Answers concurrent requests with one query, so that ten open tabs cost as much as two.

    A request that comes while a query is running waits for the next query. So no page shows the
    state from before the change that it was notified of.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reads = Batcher(self._read, most=1_000)
        self._ahead: timedelta | None = None
        self._ahead_due = 0.0
        self._adding: asyncio.Task[None] | None = None

    async def partitions_ahead(self) -> timedelta | None:
        """Return for how long history has partitions; read every ten minutes."""
        if time.monotonic() >= self._ahead_due:
            self._ahead = await self._engine.lists.partitions_ahead()
            self._ahead_due = time.monotonic() + _AHEAD_SECONDS
        return self._ahead

    async def _read(self, asked: Sequence[int]) -> Sequence[dict[str, Any]]:
        answers = {hours: await self._engine.hourly.overview(hours) for hours in set(asked)}
        if self._adding is None and any(row["ended"]["behind"] for row in answers.values()):
            # Without workers nothing else rolls up; in a task, so that no page waits for it.
            self._adding = asyncio.get_running_loop().create_task(self._add_up())
        return [answers[hours] for hours in asked]

    async def _add_up(self) -> None:
        try:
            for _ in range(_MOST_STEPS):
                if not await self._engine.upkeep.roll_up():
                    break
        except PenstockError:
            pass  # the page reports the outage, and the next read starts the roll-up again
        finally:
            self._adding = None


@page("/")
async def show(request: Request) -> Response:
    # An invalid range in the address shows the default range.
    asked = request.query_params.get("hours", "")
    hours = next((hours for hours in RANGES if str(hours) == asked), next(iter(RANGES)))
    state = request.app.state
    if not hasattr(state, "overviews"):
        state.overviews = Overviews(backend(request).engine)
    overviews: Overviews = state.overviews
    answer = await overviews.reads.ask(hours)
    rows = queue_states(answer["queues"], answer["now"])
    # The rows that are not collapsed: all if there are few, otherwise those that need attention.
    shown = len(rows)
    if shown > SHOWN_QUEUES:
        shown = min(SHOWN_QUEUES, sum(row.rank <= BUSY for row in rows))
    lines = alerts(answer, rows, ahead=await overviews.partitions_ahead())
    workers = sorted(answer["workers"], key=lambda worker: not worker["alive"])
    statuses = ("queued", "scheduled", "running", "awaiting")
    return render(
        request,
        "overview.html",
        overview=answer,
        totals={status: total(rows, status) for status in statuses},
        is_new=not answer["ended"]["ever"] and not any(row.queue["jobs"] for row in rows),
        alerts=lines[:SHOWN_ALERTS],
        more_alerts=lines[SHOWN_ALERTS:],
        queues=rows[:shown],
        more_queues=rows[shown:],
        workers=workers[:SHOWN_WORKERS],
        more_workers=workers[SHOWN_WORKERS:],
        alive=sum(worker["alive"] for worker in workers),
        throughput=_chart(answer, "bars", "outcome", OUTCOMES),
        failures=_failures(answer),
        hours=hours,
        ranges=RANGES,
        options={option.key: option for option in options.QUEUE},
    )


def _failures(answer: dict[str, Any]) -> Chart:
    """Return a chart of the most frequent classes, and the other classes as one series."""
    often = Counter[str]()
    for row in answer["ended"]["failures"]:
        often[row["class"]] += row["count"]
    names = [name for name, _ in often.most_common(SHOWN_CLASSES)]
    series = {
        name: (f"{name}: {CLASSES[name]}" if name in CLASSES else name, f"c{n}")
        for n, name in enumerate(names, start=1)
    }
    if len(often) > len(names):
        series[""] = ("other classes", "dim")
    return _chart(answer, "failures", "class", series)


def _chart(
    answer: dict[str, Any], rows: str, key: str, series: dict[str, tuple[str, str]]
) -> Chart:
    """Return a chart of these rows; values of the key without a series count in series ""."""
    finished = answer["ended"]
    return stacked(
        (
            (row["at"], row[key] if row[key] in series else "", row["count"])
            for row in finished[rows]
        ),
        series,
        begins=finished["from"],
        step=int(finished["step_seconds"]),
        now=answer["now"],
    )
