"""The web apps of the five systems in one process, each at its own port.

python -m demo.sites LIFE marking=FD essays=FD …     (`penstock dev` starts it)

The parent process keeps the sockets open, so that requests wait while this one restarts.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

import uvicorn

from demo.life import follow

# The time for open requests when the process is stopped.
LEAVE_SECONDS = 3


class Server(uvicorn.Server):
    """One of several servers in a process, all of which get the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(sockets: dict[str, socket.socket]) -> None:
    servers = {
        Server(
            uvicorn.Config(
                import_module(f"{key}.app").web,
                log_level="error",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=LEAVE_SECONDS,
            )
        ): sock
        for key, sock in sockets.items()
    }

    def stop() -> None:
        for server in servers:
            # At the second signal it does not wait for open requests.
            server.force_exit = server.should_exit
            server.should_exit = True

    loop = asyncio.get_running_loop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    # Plain handlers, because each app wraps them with its own, which closes its streams.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    serving = [asyncio.create_task(one.serve(sockets=[sock])) for one, sock in servers.items()]
    await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    unasked = not all(server.should_exit for server in servers)
    # If one server exits, all exit: the parent process restarts all of them.
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*serving)
    if unasked:
        sys.exit("One of the demo's web apps stopped unexpectedly; see its log.")


def main() -> None:
    follow(int(sys.argv[1]))
    given = (one.split("=") for one in sys.argv[2:])
    asyncio.run(serve({key: socket.socket(fileno=int(fd)) for key, fd in given}))


if __name__ == "__main__":
    main()
