"""Overview: how things stand, what needs somebody, and what happened over time."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from penstock.dashboard.components import options, words
from penstock.dashboard.components.alerts import alerts
from penstock.dashboard.components.charts import Chart, stacked
from penstock.dashboard.components.queue_state import BUSY, Standing, standings, total
from penstock.dashboard.frame import backend, page, render
from penstock.engine.engine import Engine
from penstock.engine.queries.notifications import Batcher
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
_ROOM_SECONDS = 600
# Steps of adding up what nobody has, in one go: a day or so.
_MOST_STEPS = 500


class Looks:
    """One question for all who ask at the same time, so ten open tabs cost as two.

    Who asks while an answer is on its way waits for the next: so no page shows how things stood
    before the change that it was told of.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batcher = Batcher(self._read, most=1_000)
        self._room: timedelta | None = None
        self._room_due = 0.0
        self._adding: asyncio.Task[None] | None = None

    async def look(self, hours: int) -> dict[str, Any]:
        return await self._batcher.ask(hours)

    async def room(self) -> timedelta | None:
        """For how long history has partitions; looked up now and then."""
        if time.monotonic() >= self._room_due:
            self._room = await self._engine.lists.partitions_ahead()
            self._room_due = time.monotonic() + _ROOM_SECONDS
        return self._room

    async def _read(self, asked: Sequence[int]) -> Sequence[dict[str, Any]]:
        found = {hours: await self._engine.hourly.overview(hours) for hours in set(asked)}
        if self._adding is None and any(one["ended"]["behind"] for one in found.values()):
            # Where no worker stands, nobody else adds up; and nobody shall wait for it here.
            self._adding = asyncio.get_running_loop().create_task(self._add_up())
        return [found[hours] for hours in asked]

    async def _add_up(self) -> None:
        try:
            for _ in range(_MOST_STEPS):
                if not await self._engine.upkeep.roll_up():
                    break
        except PenstockError:
            pass  # the page says that the database is away, and the next look begins it again
        finally:
            self._adding = None


@page("/")
async def show(request: Request) -> Response:
    hours = _hours(request.query_params.get("hours", ""))
    looks = _looks(request)
    found = await looks.look(hours)
    rows = standings(found)
    shown = _shown(rows)
    ended = found["ended"]
    told = alerts(found, rows, room=await looks.room())
    workers = sorted(found["workers"], key=lambda worker: not worker["alive"])
    return render(
        request,
        "overview.html",
        found=found,
        totals={
            status: total(rows, status) for status in ("queued", "scheduled", "running", "awaiting")
        },
        is_new=not ended["ever"] and not any(queue["jobs"] for queue in found["queues"]),
        alerts=told[:SHOWN_ALERTS],
        more_alerts=told[SHOWN_ALERTS:],
        queues=rows[:shown],
        more_queues=rows[shown:],
        workers=workers[:SHOWN_WORKERS],
        more_workers=workers[SHOWN_WORKERS:],
        alive=sum(worker["alive"] for worker in workers),
        throughput=_throughput(found),
        failures=_failures(found),
        hours=hours,
        ranges=RANGES,
        options={option.name: option for option in options.QUEUE},
        no_limit=options.NO_LIMIT,
    )


def _shown(rows: Sequence[Standing]) -> int:
    """How many rows of the table are not folded away: few queues all, else those that tell."""
    if len(rows) <= SHOWN_QUEUES:
        return len(rows)
    return min(SHOWN_QUEUES, sum(row.rank <= BUSY for row in rows))


def _throughput(found: dict[str, Any]) -> Chart:
    ended = found["ended"]
    return stacked(
        ((bar["at"], bar["outcome"], bar["count"]) for bar in ended["bars"]),
        OUTCOMES,
        begins=ended["from"],
        step=int(ended["step_seconds"]),
        now=found["now"],
    )


def _failures(found: dict[str, Any]) -> Chart:
    """The classes that are met most, and the others together."""
    ended = found["ended"]
    often: Counter[str] = Counter()
    for one in ended["failures"]:
        often[one["class"]] += one["count"]
    shown = [name for name, _ in often.most_common(SHOWN_CLASSES)]
    series = {name: (_class_name(name), f"c{n}") for n, name in enumerate(shown, start=1)}
    if len(often) > len(shown):
        series[""] = ("other classes", "dim")
    return stacked(
        (
            (one["at"], one["class"] if one["class"] in series else "", one["count"])
            for one in ended["failures"]
        ),
        series,
        begins=ended["from"],
        step=int(ended["step_seconds"]),
        now=found["now"],
    )


def _class_name(name: str) -> str:
    told = words.CLASSES.get(name)
    return f"{name}: {told}" if told else name


def _hours(asked: str) -> int:
    """What somebody typed into the address is no reason to refuse the page."""
    return next((hours for hours in RANGES if str(hours) == asked), next(iter(RANGES)))


def _looks(request: Request) -> Looks:
    app: Starlette = request.app
    found: Looks | None = getattr(app.state, "looks", None)
    if found is None:
        found = app.state.looks = Looks(backend(request).engine)
    return found
