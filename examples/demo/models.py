"""All services that the jobs call, in one process: when it stops, all are unavailable.

python -m demo.models LIFE PORT …     (the ports of `setting.Ports`; `penstock dev` starts it)

Feedback and pictures use Penstock's simulated model, essays their scorer, and marks the function
that calls back. When the process is stopped, the function finishes the marks that it has started.
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

# Slow enough to watch: a text takes about five seconds, a picture or a mark two.
LATENCY, TOKENS, TOKENS_PER_SECOND = 1.8, 80, 24.0
SLOTS = 5
MARK_SECONDS = 2.0
# A mark may be in progress when the process is stopped, and its callback must be delivered.
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
    # Close all ports at once, so that new calls are refused.
    marks.close()
    simulated.close()
    if scorer.state.server is not None:
        scorer.state.server.should_exit = True
    await serving
    await simulated.gone()
    await asyncio.to_thread(marks.rest, REST_SECONDS)


async def _score(port: int, stop: asyncio.Event) -> None:
    """Serve the essays' scorer; after its fault `down`, start it again."""
    # Critical: that calls are cut off when it stops is intended, and not worth a log line.
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
    """Serve the function's control port, also while the function itself accepts no calls."""
    control = type("Control", (Control,), {"function": function})
    server = ThreadingHTTPServer((HOST, port), control)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    follow(int(sys.argv[1]))
    asyncio.run(run(*(int(port) for port in sys.argv[2:])))
