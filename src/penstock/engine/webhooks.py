"""Messages about finished jobs: a worker takes and sends them, and records the result."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from penstock.engine.encoding.encode import refuse_nul
from penstock.engine.statements import Answer as Json
from penstock.engine.statements import Statements


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message, and the number of this try."""

    id: UUID
    attempt: int
    job_id: UUID
    event: str
    url: str
    host: str
    trusted: bool
    """The operator's own address, which may be a private one."""
    account: str | None
    created_at: datetime
    job: str
    """The job as JSON."""
    taken_at: datetime | None = None
    """By the server's clock; a worker's clock may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one try."""

    taken: bool
    status: int | None = None
    error: str | None = None
    over: bool = False
    """Do not try again: the receiver is gone for good."""
    after: timedelta | None = None
    """How long the receiver asked to wait."""


class Webhooks(Statements):
    async def claim(self, limit: int, *, lease: timedelta, after: str = "") -> list[Delivery]:
        """Take due messages, in turn by host, beginning behind `after`, a few for each host."""
        return await self._rows(
            Delivery,
            "select id, try, job_id, event, url, host, trusted, account, created_at, job,"
            " penstock.server_time() as taken_at from penstock.claim_deliveries($1, $2, $3)",
            *(limit, lease, after),
        )

    async def any_due(self) -> bool:
        """Whether a message is due."""
        return await self._value(bool, "select penstock.any_delivery_due()")

    async def report(self, delivery: Delivery, answer: Answer) -> str | None:
        """Record the result of a try; return the delivery's status, None if it is deleted."""
        status: str | None
        [status] = await self._values(
            "select penstock.report_delivery($1, $2, $3, $4, $5, $6, $7)",
            *(delivery.id, delivery.attempt),
            *(answer.taken, answer.status, answer.error, answer.over, answer.after),
        )
        return status

    async def list(  # noqa: PLR0913  # one per filter
        self,
        *,
        account: str | None = None,
        owner: str | None = None,
        job: UUID | None = None,
        status: str | None = None,
        limit: int = 50,
        before: UUID | None = None,
    ) -> list[Json]:
        """Deliveries, newest first. The next page begins `before` the last id of this one.

        `account`: those that the account's keys may see. `owner`: all of that account, for
        operators.
        """
        for name, value in (("account", account), ("account", owner), ("status", status)):
            refuse_nul(value, name, code="invalid_filter")
        sql = "select d as delivery from penstock.list_deliveries($1, $2, $3, $4, $5, $6) d"
        return await self._values(sql, account, owner, job, status, limit, before)

    async def replay(self, delivery: UUID, *, account: str | None = None) -> Json:
        """Send it again, under the same id."""
        return await self._value(dict, "select penstock.replay_delivery($1, $2)", delivery, account)
