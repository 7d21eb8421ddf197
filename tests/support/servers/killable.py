"""A Postgres of one test, which can be killed in the middle of everything and restarted."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from penstock.db.embedded.database import Embedded
from support.db.embedded_uses import end_servers, postmaster

# As users have it: acknowledged commits are on the disk.
DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # After a crash it syncs the disk at once, not file by file, which takes seconds.
    "recovery_init_sync_method": "syncfs",
}


class Killable:
    """Blocks while the server starts or stops; asyncio callers run it in a thread."""

    def __init__(self, home: Path, settings: Mapping[str, str] = DURABLE) -> None:
        self._home = home
        self._settings = settings
        self._uses: list[Embedded] = []
        self.start()
        self.dsn = self._uses[0].dsn

    def start(self) -> None:
        """Start it, as a supervisor would; return when it accepts connections."""
        self._uses.append(Embedded.use(self._home, settings=self._settings))

    def kill(self) -> None:
        """Kill it without notice. The next start aborts what its backends were doing."""
        os.kill(postmaster(self._home), signal.SIGKILL)

    def close(self) -> None:
        while self._uses:
            self._uses.pop().leave()
        end_servers(self._home)
