"""The handler of `handler = "dispatch"`: hand a job to a function, which calls back later.

The job is handed over first and the function called then: so a callback can never be too early, and
a worker that dies in between leaves a job that awaits, as if the function had forgotten it. A call
that nobody took takes the job back, at no cost where nobody was there. A call that was not answered
in time leaves it: the function may have it, and a second call would have it done twice.
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

# A function needs no time to say that it has taken a job.
ANSWER_SECONDS = 30.0

_log = logging.getLogger("penstock.models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch(Http):
    """Signed by the kind's own secret if it has one, else by the installation's."""

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
                "the function at %s did not say in time that it took a job; it may yet call back",
                config.endpoint.address,
                extra={"job": job.id, "kind": job.kind, "attempt": job.attempt},
            )

    return dispatch
