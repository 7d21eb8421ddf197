"""The only way from the client to a worker: run due jobs in this process, and come back."""

from collections.abc import Mapping
from uuid import UUID

from penstock.models.handlers.handler import Handler


async def run_jobs(
    dsn: str,
    handlers: Mapping[str, Handler],
    *,
    name: str,
    tracebacks: bool,
    job: UUID | None = None,
) -> int:
    """Run what is due until there is nothing, or only `job`; how many attempts there were."""
    # Here, since an app that only submits needs no worker.
    from penstock.worker.worker import Options, Worker

    options = Options(name=name, until_idle=True, job=job, webhooks=False, tracebacks=tracebacks)
    return (await Worker(dsn, handlers, options).run()).processed
