"""Overview: the state of all queues, what needs somebody, and what happened over time."""

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

# By the hours that an address may ask for.
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
# Days change slowly.
_AHEAD_SECONDS = 600
# Steps of adding up what nobody has, in one go: a day or so.
_MOST_STEPS = 500


class Overviews:
    """One query for all who ask at the same time, so ten open tabs cost as two.

    Who asks while an answer is on its way waits for the next: so no page shows the state before the
    change that it was notified of.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reads = Batcher(self._read, most=1_000)
        self._ahead: timedelta | None = None
        self._ahead_due = 0.0
        self._adding: asyncio.Task[None] | None = None

    async def partitions_ahead(self) -> timedelta | None:
        """For how long history has partitions; read now and then."""
        if time.monotonic() >= self._ahead_due:
            self._ahead = await self._engine.lists.partitions_ahead()
            self._ahead_due = time.monotonic() + _AHEAD_SECONDS
        return self._ahead

    async def _read(self, asked: Sequence[int]) -> Sequence[dict[str, Any]]:
        answers = {hours: await self._engine.hourly.overview(hours) for hours in set(asked)}
        if self._adding is None and any(row["ended"]["behind"] for row in answers.values()):
            # Where no worker runs, nobody else adds up; and nobody shall wait for it here.
            self._adding = asyncio.get_running_loop().create_task(self._add_up())
        return [answers[hours] for hours in asked]

    async def _add_up(self) -> None:
        try:
            for _ in range(_MOST_STEPS):
                if not await self._engine.upkeep.roll_up():
                    break
        except PenstockError:
            pass  # the page reports the outage, and the next read begins it again
        finally:
            self._adding = None


@page("/")
async def show(request: Request) -> Response:
    # What somebody typed into the address is no reason to refuse the page.
    asked = request.query_params.get("hours", "")
    hours = next((hours for hours in RANGES if str(hours) == asked), next(iter(RANGES)))
    state = request.app.state
    if not hasattr(state, "overviews"):
        state.overviews = Overviews(backend(request).engine)
    overviews: Overviews = state.overviews
    answer = await overviews.reads.ask(hours)
    rows = queue_states(answer["queues"], answer["now"])
    # How many rows of the table are not folded away: few queues all, else those that matter.
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
    """The classes that are met most, and the others together."""
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
    """Of these rows, a series for each value of the key; what has no series goes to that of ""."""
    ended = answer["ended"]
    return stacked(
        ((row["at"], row[key] if row[key] in series else "", row["count"]) for row in ended[rows]),
        series,
        begins=ended["from"],
        step=int(ended["step_seconds"]),
        now=answer["now"],
    )
