"""`Prefer: wait=30` (RFC 7240): the answer comes when the job has ended, or the time is over."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.queries.json_texts import Text
from penstock.engine.states import FINISHED
from penstock.http.auth.caller import Principal
from penstock.http.backend import Backend
from penstock.http.middleware.limits import limits
from penstock.http.routing import HEADER

LONGEST_SECONDS = 30
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})(?=$|[,;\s])", re.IGNORECASE)

Prefer = Annotated[
    str | None,
    HEADER,
    Field(description="`wait=10`: answer when the job has ended, after 10 s at the latest (30)."),
]


async def waited(  # noqa: PLR0913, PLR0917  # one caller each for submit and read
    prefer: str | None,
    request: Request,
    principal: Principal,
    behind: Backend,
    job: Text,
    read: Callable[[], Awaitable[Text]],
) -> tuple[Text, int | None]:
    """The job as it is after the wait that its caller prefers, and how long that may have been.

    What the first answer had beside the job (a balance, a twin) stays in it. A caller with as many
    streams and waiting requests as it may have is answered at once.
    """
    found = _WAIT.search(prefer or "")
    if found is None:
        return job, None
    seconds = min(int(found[1]), LONGEST_SECONDS)
    if seconds and job.status not in FINISHED:
        if not limits(request).may_wait(request.scope, principal):
            return job, None
        await behind.live.until_final(job.id, seconds)
        later = await read()
        merged = json.dumps(json.loads(job.text) | json.loads(later.text))
        job = job._replace(text=merged, status=later.status, eta_seconds=later.eta_seconds)
    return job, seconds


def applied(response: Response, seconds: int | None) -> Response:
    """Say that it was waited."""
    if seconds is not None:
        response.headers["Preference-Applied"] = f"wait={seconds}"
    return response
