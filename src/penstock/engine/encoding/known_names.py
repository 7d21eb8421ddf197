"""Which kinds or queues there are, added to the refusal of one that there is not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.base.suggestions import did_you_mean
from penstock.engine.queries.rows import JobRows
from penstock.errors import NotFound

MOST_NAMED = 20


@asynccontextmanager
async def naming_known(rows: JobRows) -> AsyncIterator[None]:
    """For callers who may know all names: a customer's key is none of them."""
    try:
        yield
    except NotFound as error:
        known: list[str]
        match error.code:
            case "unknown_kind":
                known = await rows.kinds()
            case "unknown_queue":
                known = await rows.queues()
            case _:
                raise
        name = error.members.get(error.code.removeprefix("unknown_"))
        error.message = f"{error.message}; {listed(known)}.{did_you_mean(name, known)}"
        error.args = (error.message,)
        raise


def listed(known: list[str]) -> str:
    """`known are mail, studio`, of many the first."""
    if not known:
        return "none is declared yet"
    more = f" and {len(known) - MOST_NAMED:,} more" if len(known) > MOST_NAMED else ""
    return f"known are {', '.join(known[:MOST_NAMED])}{more}"
