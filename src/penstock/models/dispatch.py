"""The handler of `handler = "dispatch"`: hand a job to a function, which calls back later.

The job is handed over first and the function called then: so a callback can never be too early, and
a worker that dies in between leaves a job that awaits, as if the function had forgotten it. A call
that nobody took takes the job back, at no cost where nobody was there. A call that was not answered
in time leaves it: the function may have it, and a second call would have it done twice.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.models.handlers.protocols import Handler, Handover, Job
from penstock.models.http import refused
from penstock.net.endpoint import Endpoint
from penstock.security import signature
from penstock.security.callback_token import Outside
from penstock.security.secret import Secret
from penstock.security.signature import Signer, signed

# To say that it has taken a job, a function needs no time.
ANSWER_SECONDS = 30.0
_GOOD = range(200, 300)

_log = logging.getLogger("penstock.models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    endpoint: Endpoint
    outside: Callable[[], Outside]
    headers: Mapping[str, Secret] = field(default_factory=dict)
    signer: Signer | None = None
    """By the kind's own secret; else by the installation's."""
    answer_seconds: float = ANSWER_SECONDS


def build(config: Dispatch) -> Handler:
    async def dispatch(job: Job, payload: dict[str, Any]) -> None:
        # Here: its library takes a quarter of a second to load, and only a worker calls.
        from penstock.net.transport import Transport

        outside = config.outside()
        job.stage("outside", label="Handed to the service")
        body = _request(job, payload, await job.hand_over())
        signer = config.signer or signature.of_functions(outside.roots)
        headers = {
            **{name: value.reveal() for name, value in config.headers.items()},
            **signed(signer, f"{job.id}.{job.attempt}", int(time.time()), body),
            "Idempotency-Key": str(job.id),
        }
        transport = await Transport.here()
        limit = asyncio.timeout(config.answer_seconds)
        try:
            async with limit, transport.post(config.endpoint, body, headers) as answer:
                if answer.status not in _GOOD:
                    raise refused(await answer.refusal("the function"))
                await answer.finish()
        except TimeoutError:
            if not limit.expired():
                raise
            _log.info(
                "the function at %s did not say in time that it took a job; it may yet call back",
                config.endpoint.address,
                extra={"job": job.id, "kind": job.kind, "attempt": job.attempt},
            )

    return dispatch


def _request(job: Job, payload: dict[str, Any], given: Handover) -> bytes:
    body = {
        "job_id": str(job.id),
        "kind": job.kind,
        "attempt": job.attempt,
        "payload": payload,
        "callback_url": given.callback_url,
        "token": given.token,
        "expires_at": given.expires_at.isoformat().replace("+00:00", "Z"),
    }
    return json.dumps(body, ensure_ascii=False).encode()
