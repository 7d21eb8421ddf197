"""A process of the demo ends with the one that started it, whatever ended that one."""

import os
import signal
import threading
import time

# What it may take to leave in good order, and then to leave at once.
_LEAVE_SECONDS = 5.0


def follow(pipe: int) -> None:
    """`pipe` is never written to: when it ends, whoever started us is gone."""
    os.set_inheritable(pipe, False)
    threading.Thread(target=_wait, args=(pipe,), daemon=True).start()


def _wait(pipe: int) -> None:
    os.read(pipe, 1)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        os.kill(os.getpid(), number)
        time.sleep(_LEAVE_SECONDS)
