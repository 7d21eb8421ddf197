"""Accounts, their credits, and the plans they follow: a method for each SQL function."""

from collections.abc import AsyncIterator
from typing import Any

from penstock.engine.encoding.encode import CREDITS_MAX, encode, refuse_nuls, whole
from penstock.engine.queues import NOWHERE, Location
from penstock.engine.statements import Answer, Statements
from penstock.errors import Conflict, Invalid

Answers = list[Answer]

PAGE = 1_000
_BIGGEST = 2**63 - 1
_MOST_LISTED = 1_000
# Each step of an erasure removes hundreds of jobs; this many steps remove half a billion.
_MOST_STEPS = 1_000_000
# A worker that is asked to stop a job has this long before upkeep recovers the job.
_BUSY_SECONDS = 10


class Accounts(Statements):
    """Accounts and their credits. With `conn`, credits change in the caller's transaction."""

    async def create(self, name: str, *, plan: str | None = None) -> int:
        """Make an account, with the default plan if none is given; return its number."""
        refuse_nuls(account=name, plan=plan)
        return await self._value(int, "select penstock.create_account($1, $2)", name, plan)

    async def set_plan(self, name: str, plan: str) -> None:
        """Change an account's plan; its limits apply at once to waiting jobs."""
        refuse_nuls(account=name, plan=plan)
        if plan is None:  # from a form, for example: SQL would take the default plan
            raise Invalid("plan is required: the name of a plan", code="invalid_plan", field="plan")
        await self._fetch("select penstock.set_account_plan($1, $2)", (name, plan))

    async def show(self, name: str, *, conn: Any = None) -> Answer:
        """Plan and balance of an account, and how much of its limits is in use."""
        refuse_nuls(account=name)
        sql = "select penstock.read_account(cast($1 as text)) as answer"
        return await self._json(sql, (name,), conn)

    async def grant(
        self,
        name: str,
        amount: int,
        *,
        reason: str | None = None,
        ref: str | None = None,
        conn: Any = None,
    ) -> Answer:
        """Grant an account credits. A repeated `ref` changes nothing; the answer is `replayed`."""
        refuse_nuls(account=name, reason=reason, ref=ref)
        return await self._json(
            "select penstock.grant_credits(cast($1 as text), cast($2 as bigint),"
            " cast($3 as text), cast($4 as text)) as answer",
            (name, _amount(amount), reason, ref),
            conn,
        )

    async def deduct(
        self, name: str, amount: int, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Take credits for something other than a job, once per `ref`; or InsufficientCredits."""
        refuse_nuls(account=name, reason=reason, ref=ref)
        return await self._json(
            "select penstock.deduct_credits(cast($1 as text), cast($2 as bigint),"
            " cast($3 as text), cast($4 as text)) as answer",
            (name, _amount(amount), reason, ref),
            conn,
        )

    async def refund(
        self, name: str, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Refund what was deducted under this `ref`, once."""
        refuse_nuls(account=name, reason=reason, ref=ref)
        return await self._json(
            "select penstock.refund_credits(cast($1 as text), cast($2 as text),"
            " cast($3 as text)) as answer",
            (name, ref, reason),
            conn,
        )

    async def ledger(self, name: str, *, limit: int = 100, before: int | None = None) -> Answers:
        """Every movement of an account's credits, newest first.

        The next page begins `before` the last id of this one.
        """
        refuse_nuls(account=name)
        if before is not None:
            whole(before, "before", 0, _BIGGEST, "invalid_filter")
        sql = "select entry from penstock.read_ledger($1, $2, $3) entry"
        return await self._values(sql, name, _limit(limit), before)

    async def list(self, *, limit: int = 100, after: str | None = None) -> Answers:
        """Accounts by name; the next page begins `after` the last name of this one."""
        refuse_nuls(after=after)
        sql = "select account from penstock.list_accounts($1, $2) account"
        return await self._values(sql, _limit(limit), after)

    async def plans(self) -> Answers:
        """Every plan as it is in force, with the options that were edited at run time."""
        return await self._values("select plan from penstock.list_plans() plan")

    async def declare_plan(
        self, name: str, *, by: str | None = None, at: Location = NOWHERE, **options: Any
    ) -> None:
        """Declare what a plan allows. A changed limit applies at once to waiting jobs."""
        await self._fetch(
            "select penstock.declare_plan($1, $2::text::jsonb, $3, $4::text::jsonb, $5)",
            (name, encode(options, "options"), by, *at.arguments),
        )

    async def edit_plan(self, name: str, **options: Any) -> None:
        """Override a plan's options at run time, also after restarts; None removes an override."""
        refuse_nuls(plan=name)
        await self._fetch(
            "select penstock.edit_plan($1, $2::text::jsonb)", (name, encode(options, "options"))
        )

    async def reset_plan(self, name: str) -> None:
        """Remove every override."""
        refuse_nuls(plan=name)
        await self._fetch("select penstock.reset_plan($1)", (name,))


def _amount(value: Any) -> int:
    return whole(value, "amount", 1, CREDITS_MAX, "invalid_amount")


def _limit(value: Any) -> int:
    return whole(value, "limit", 1, _MOST_LISTED, "invalid_filter")


async def books(accounts: Accounts, name: str, *, page: int = PAGE) -> AsyncIterator[Answers]:
    """Every line of an account's ledger, the oldest first; one page at a time is in memory.

    The database reads a ledger from its end. So a first pass notes where the pages begin, and a
    second one reads them in turn: lines are never changed, and new lines come after the last page.
    An account without lines has one empty page.
    """
    lines = await accounts.ledger(name, limit=page)
    if not lines:
        yield lines
    begins: list[int] = []
    while lines:
        begins.append(lines[0]["id"] + 1)
        lines = await accounts.ledger(name, limit=page, before=lines[-1]["id"])
    for begin in reversed(begins):
        yield (await accounts.ledger(name, limit=page, before=begin))[::-1]


class Erasure(Statements):
    """Removes a person: everything but the ledger, in steps that hold locks briefly."""

    async def erase(self, account: str) -> Answer:
        """Remove an account's jobs, uploads and name; return what was removed.

        Repeat it until it returns: waiting jobs are cancelled and refunded, and running ones are
        asked to stop. While some of them still run, it raises Conflict (`account_busy`) with their
        number.
        """
        refuse_nuls(account=account)
        for _ in range(_MOST_STEPS):
            step = await self._value(dict, "select penstock.erase_account($1)", account)
            done, live, cancelled = (step.pop(name) for name in ("done", "live", "cancelled"))
            if done:
                return step
            if live and not cancelled:
                raise Conflict(
                    f"{live} of the account's jobs still run; they were asked to stop",
                    code="account_busy",
                    running=live,
                    retry_after=_BUSY_SECONDS,
                    hint="Repeat this until they have finished; the account's keys no longer work.",
                )
        raise Conflict("jobs are submitted faster than they can be removed", code="account_busy")
