"""What operators look at: how things stand, figures by the hour, numbers to be scraped."""

from typing import Any

from penstock.db.adapters.caller_connection import Fetch
from penstock.engine.encoding.encode import whole

MOST_HOURS = 2_160

Answer = dict[str, Any]


class Hourly:
    """Answers are plain dicts in the form of the contract: they are shown or sent."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def status(self) -> Answer:
        """Totals, averages, every queue and worker, and what is stuck."""
        return await self._one("select penstock.read_admin_status() as answer", ())

    async def metrics(self, hours: int = 24, *, queue: str | None = None) -> Answer:
        """Failures by class and ends by queue, kind and outcome, each by the hour."""
        hours = whole(hours, "hours", 1, MOST_HOURS, "invalid_filter")
        return await self._one("select penstock.read_metrics($1, $2) as answer", (hours, queue))

    async def overview(self, hours: int = 24) -> Answer:
        """What lives and what has ended, for a page that is looked at every second.

        Where counting would take long, a count is an estimate: its status is named in `about`.
        """
        hours = whole(hours, "hours", 1, MOST_HOURS, "invalid_filter")
        return await self._one("select penstock.read_overview($1) as answer", (hours,))

    async def gauges(self) -> Answer:
        """Queues, workers, and all that was counted since the beginning."""
        return await self._one("select penstock.read_gauges() as answer", ())

    async def _one(self, sql: str, args: tuple[Any, ...]) -> Answer:
        [row] = await self._fetch(sql, args)
        answer: Answer = row["answer"]
        return answer
