"""`python -m support.worker.runner DSN OPTIONS`: a worker with any options."""

import asyncio
import json
import signal
import sys
from datetime import timedelta
from typing import Any

import uvloop

from penstock.base import logs
from penstock.worker.worker import Options, Worker
from support.worker.apps import app

DURATIONS = ("poll", "lease", "beat", "drain")


def options(given: dict[str, Any]) -> Options:
    for name in DURATIONS:
        if name in given:
            given[name] = timedelta(seconds=given[name])
    if "queues" in given:
        given["queues"] = tuple(given["queues"])
    return Options(**given)


async def work(dsn: str, given: dict[str, Any]) -> None:
    worker = Worker(dsn, app.handlers(), options(given))
    stopped = False

    def hear() -> None:
        nonlocal stopped
        if stopped:
            worker.stop_at_once()
        else:
            stopped = True
            worker.stop()
            print("Stopping", flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, hear)
    ran = await worker.run()
    print(json.dumps({"processed": ran.processed, "reason": ran.reason}), flush=True)


if __name__ == "__main__":
    logs.configure("info")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(sys.argv[1], json.loads(sys.argv[2])))
