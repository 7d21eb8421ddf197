"""Suppress the driver's log lines about connections that a cancelled caller abandoned.

Over TCP asyncpg asks for TLS first, and keeps the answer in a future. If a call is cancelled before
that answer, the future fails later without a reader, and the loop logs "Future exception was never
retrieved". This happens while a connection opens, and while the driver opens a second one to cancel
the statement. asyncpg 0.32 has no option for it, so the future's exception is always retrieved
here; a caller that awaits the future still gets it.
"""

from typing import Any

from asyncpg import connect_utils


def quiet_handshakes() -> None:
    """Patch the driver once per process; do nothing if the driver has changed."""
    asks_for_tls = getattr(connect_utils, "TLSUpgradeProto", None)
    if asks_for_tls is not None and not issubclass(asks_for_tls, _Quiet):
        name = "TLSUpgradeProto"
        setattr(connect_utils, name, type(name, (_Quiet, asks_for_tls), {}))


class _Quiet:
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        answer = getattr(self, "on_data", None)
        if answer is not None:
            answer.add_done_callback(_retrieve)


def _retrieve(answer: Any) -> None:
    if not answer.cancelled():
        answer.exception()
