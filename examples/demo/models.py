"""Everything that the jobs call, in one process: when it ends, all of it is away.

python -m demo.models LIFE PORT …     (those of `setting.Ports`; `penstock dev` starts it)

Of the feedback and the pictures: Penstock's simulated model. Of the essays: their scorer. Of the
marks: the function, which calls back. Told to end, it marks to the end what it has begun.
"""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer

import uvicorn

from demo.life import follow
from demo.sites import Server
from essays import model as scorer
from marking.function import HOST, Control, Function, Log, Orders
from penstock.models.simulated.model import Model
from penstock.models.simulated.options import Options

# Slow enough to be watched: a text takes about five seconds, a picture or a mark two.
LATENCY, TOKENS, TOKENS_PER_SECOND = 1.8, 80, 24.0
SLOTS = 5
MARK_SECONDS = 2.0
# One mark may be under way when we are told to end, and its callback has to be taken.
REST_SECONDS = 4.0


async def run(model: int, control: int, essays: int, function: int, orders: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    simulated = Model(
        Options(
            port=model,
            control=control,
            latency=LATENCY,
            tokens=TOKENS,
            tokens_per_second=TOKENS_PER_SECOND,
            jitter=0.2,
            slots=SLOTS,
        )
    )
    marks = Function(
        function, os.environ["MARKING_FUNCTION_SECRET"], Orders(MARK_SECONDS), Log(None)
    )
    _listen(orders, marks)
    simulated.open()
    marks.open()
    serving = asyncio.create_task(_score(essays, stop))
    await stop.wait()
    # All doors at once: who knocks now hears that nobody is there.
    marks.close()
    simulated.close()
    if scorer.state.server is not None:
        scorer.state.server.should_exit = True
    await serving
    await simulated.gone()
    await asyncio.to_thread(marks.rest, REST_SECONDS)


async def _score(port: int, stop: asyncio.Event) -> None:
    """The essays' scorer; where its fault `down` was ordered, it comes back after that."""
    # Critical: that calls are broken off when it ends is what it is ended for.
    config = uvicorn.Config(
        scorer.service, host=HOST, port=port, log_level="critical", timeout_graceful_shutdown=1
    )
    while not stop.is_set():
        scorer.state.server = Server(config)
        scorer.state.down_seconds = 0
        await scorer.state.server.serve()
        if not scorer.state.down_seconds:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), scorer.state.down_seconds)


def _listen(port: int, function: Function) -> None:
    """The function's control port, open also while its door is shut."""
    control = type("Control", (Control,), {"function": function})
    server = ThreadingHTTPServer((HOST, port), control)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    follow(int(sys.argv[1]))
    asyncio.run(run(*(int(port) for port in sys.argv[2:])))
