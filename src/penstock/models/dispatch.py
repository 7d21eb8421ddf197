"""The handler of `handler = "dispatch"`: pass a job to a function, which calls back later.

The job becomes `awaiting` before the function is called. So a callback can never come too early. If
the worker dies in between, the job waits for its callback, as if the function had forgotten it.
If the call fails, the job is taken back; this counts as no failure if the function was unreachable.
If the call is not answered in time, the job stays dispatched: the function may have received it,
and a second call would run the job twice.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.models.handlers.job import Job
from penstock.models.handlers.protocols import Handler
from penstock.models.http import Http, NoAnswer, called
from penstock.security import signature
from penstock.security.callback_token import Outside

# Enough to accept a job: the function does the work after its answer.
ANSWER_SECONDS = 30.0

_log = logging.getLogger("penstock.models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch(Http):
    """The options of a dispatched kind.

    Calls are signed with the kind's own secret if it has one, else with the installation's.
    """

    outside: Callable[[], Outside]
    answer_seconds: float = ANSWER_SECONDS


def build(config: Dispatch) -> Handler:
    async def dispatch(job: Job, payload: dict[str, Any]) -> None:
        outside = config.outside()
        job.stage("outside", label="Handed to the service")
        handover = await job.hand_over()
        callback = {
            "callback_url": handover.callback_url,
            "token": handover.token,
            "expires_at": handover.expires_at.isoformat().replace("+00:00", "Z"),
        }
        signer = config.signer or signature.of_functions(outside.roots)
        try:
            async with called(config, signer, job, payload, callback) as answer:
                await answer.finish()
        except NoAnswer:
            _log.info(
                "the function at %s did not confirm a job in time; it may still call back",
                config.endpoint.address,
                extra={"job": job.id, "kind": job.kind, "attempt": job.attempt},
            )

    return dispatch
