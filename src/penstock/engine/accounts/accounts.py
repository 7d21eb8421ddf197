"""Accounts, their credits, and the plans they follow: one method per SQL function."""

import json
from typing import Any

from penstock.db.adapters.caller_connection import Fetch, borrow
from penstock.engine.encoding.encode import CREDITS_MAX, encode, refuse_nul, whole
from penstock.engine.queues import NOWHERE, Location
from penstock.errors import Invalid

# What each call answers is a plain dict in the form of the contract: it is shown or sent.
Answer = dict[str, Any]
Answers = list[dict[str, Any]]

_BIGGEST = 2**63 - 1
_MOST_LISTED = 1_000


class Accounts:
    """What moves credits takes the caller's own connection, too: then it is part of his work."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def create(self, name: str, *, plan: str | None = None) -> int:
        """Make an account, with the default plan unless told; its number."""
        _refuse_odd(account=name, plan=plan)
        [row] = await self._fetch("select penstock.create_account($1, $2) as id", (name, plan))
        number: int = row["id"]
        return number

    async def set_plan(self, name: str, plan: str) -> None:
        """Change an account's plan; its limits apply at once to what waits."""
        _refuse_odd(account=name, plan=plan)
        if plan is None:  # from a form, say: SQL would take the default one
            raise Invalid("plan is required: the name of a plan", code="invalid_plan", field="plan")
        await self._fetch("select penstock.set_account_plan($1, $2)", (name, plan))

    async def show(self, name: str, *, conn: Any = None) -> Answer:
        """Plan and balance of an account, and how much of its limits it uses."""
        _refuse_odd(account=name)
        return await self._one(
            "select penstock.read_account(cast($1 as text)) as answer", (name,), conn
        )

    async def grant(
        self,
        name: str,
        amount: int,
        *,
        reason: str | None = None,
        ref: str | None = None,
        conn: Any = None,
    ) -> Answer:
        """Give an account credits. The same `ref` again changes nothing, and is `replayed`."""
        _refuse_odd(account=name, reason=reason, ref=ref)
        return await self._one(
            "select penstock.grant_credits(cast($1 as text), cast($2 as bigint),"
            " cast($3 as text), cast($4 as text)) as answer",
            (name, _amount(amount), reason, ref),
            conn,
        )

    async def deduct(
        self, name: str, amount: int, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Take credits for something that is no job, once per `ref`; InsufficientCredits."""
        _refuse_odd(account=name, reason=reason, ref=ref)
        return await self._one(
            "select penstock.deduct_credits(cast($1 as text), cast($2 as bigint),"
            " cast($3 as text), cast($4 as text)) as answer",
            (name, _amount(amount), reason, ref),
            conn,
        )

    async def refund(
        self, name: str, *, ref: str, reason: str | None = None, conn: Any = None
    ) -> Answer:
        """Give back what was deducted under this `ref`, once."""
        _refuse_odd(account=name, reason=reason, ref=ref)
        return await self._one(
            "select penstock.refund_credits(cast($1 as text), cast($2 as text),"
            " cast($3 as text)) as answer",
            (name, ref, reason),
            conn,
        )

    async def ledger(self, name: str, *, limit: int = 100, before: int | None = None) -> Answers:
        """Every movement of an account's credits, newest first.

        The next page begins `before` the last id of this one.
        """
        _refuse_odd(account=name)
        rows = await self._fetch(
            "select entry from penstock.read_ledger($1, $2, $3) entry",
            (name, _limit(limit), _place(before)),
        )
        return [row["entry"] for row in rows]

    async def list(self, *, limit: int = 100, after: str | None = None) -> Answers:
        """Accounts by name; the next page begins `after` the last name of this one."""
        _refuse_odd(after=after)
        rows = await self._fetch(
            "select account from penstock.list_accounts($1, $2) account", (_limit(limit), after)
        )
        return [row["account"] for row in rows]

    async def plans(self) -> Answers:
        """Every plan as it is in force, with what was edited at run time."""
        rows = await self._fetch("select plan from penstock.list_plans() plan", ())
        return [row["plan"] for row in rows]

    async def declare_plan(
        self, name: str, *, by: str | None = None, at: Location = NOWHERE, **options: Any
    ) -> None:
        """Say what a plan allows. A changed limit applies at once to what waits."""
        await self._fetch(
            "select penstock.declare_plan($1, $2::text::jsonb, $3, $4::text::jsonb, $5)",
            (name, encode(options, "options"), by, *at.arguments),
        )

    async def edit_plan(self, name: str, **options: Any) -> None:
        """Override a plan at run time, over restarts; None goes back to what is declared."""
        _refuse_odd(plan=name)
        await self._fetch(
            "select penstock.edit_plan($1, $2::text::jsonb)", (name, encode(options, "options"))
        )

    async def reset_plan(self, name: str) -> None:
        """Drop every override."""
        _refuse_odd(plan=name)
        await self._fetch("select penstock.reset_plan($1)", (name,))

    async def _one(self, sql: str, args: tuple[Any, ...], conn: Any) -> Answer:
        fetch = self._fetch if conn is None else borrow(conn)
        [row] = await fetch(sql, args)
        found = row["answer"]
        # Some drivers leave jsonb as text.
        answer: Answer = json.loads(found) if isinstance(found, str) else found
        return answer


def _refuse_odd(**texts: str | None) -> None:
    """What would fail in the driver, before the database could name the field."""
    for field, text in texts.items():
        refuse_nul(text, field, code=f"invalid_{field}")


def _amount(value: Any) -> int:
    return whole(value, "amount", 1, CREDITS_MAX, "invalid_amount")


def _limit(value: Any) -> int:
    return whole(value, "limit", 1, _MOST_LISTED, "invalid_filter")


def _place(value: Any) -> int | None:
    return None if value is None else whole(value, "before", 0, _BIGGEST, "invalid_filter")
