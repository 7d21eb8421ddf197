"""The whole ledger of an account as a file for spreadsheets, the oldest line first."""

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.dashboard.frame import backend, page
from penstock.engine.accounts.accounts import books

FIELDS = ("at", "kind", "amount", "job", "ref", "reason", "balance_after")
# Spreadsheets take a text that begins so for something to be computed.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_TEXTS = ("ref", "reason")


@page("/ledger.csv")
async def show(request: Request) -> Response:
    name = request.query_params.get("account", "")
    accounts = backend(request).engine.accounts
    await accounts.show(name)  # refuses one that is not there, before anything is sent
    return StreamingResponse(
        _text(books(accounts, name)),
        media_type="text/csv",
        headers={"Content-Disposition": 'attachment; filename="ledger.csv"'},
    )


async def _text(pages: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    yield ",".join(FIELDS) + "\n"
    async for lines in pages:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(
            [_cell(field, line[field]) for field in FIELDS] for line in lines
        )
        yield out.getvalue()


def _cell(field: str, value: Any) -> Any:
    if field in _TEXTS and str(value or "").startswith(_FORMULA):
        return f"'{value}"
    return value
