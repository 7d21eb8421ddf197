"""The whole ledger of an account, for statements that are written to a file."""

from collections.abc import AsyncIterator

from penstock.engine.accounts.accounts import Accounts, Answers

PAGE = 1_000


async def books(accounts: Accounts, name: str, *, page: int = PAGE) -> AsyncIterator[Answers]:
    """Every line, the oldest first, a page at a time in memory.

    It is read from its end. So a first pass notes where its pages begin, and a second one takes
    them in turn: lines are never changed, and what is written meanwhile comes after the last
    page. An account without a line has one page, which is empty.
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
