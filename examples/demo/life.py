"""Stops a process of the demo when the process that started it has died, for whatever reason."""

import os
import signal
import threading
import time

# The time between two signals: stop gracefully, stop at once, kill.
_LEAVE_SECONDS = 5.0


def follow(pipe: int) -> None:
    """Stop this process when `pipe` closes, because then its parent has died."""
    os.set_inheritable(pipe, False)
    threading.Thread(target=_wait, args=(pipe,), daemon=True).start()


def _wait(pipe: int) -> None:
    os.read(pipe, 1)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        os.kill(os.getpid(), number)
        time.sleep(_LEAVE_SECONDS)
