"""Keep the driver quiet about connections that a cancelled caller gave up half-way.

Over TCP asyncpg asks for TLS first, and keeps the answer in a future. Where a call is cancelled
before that answer, the future fails later, nobody is left to hear of it, and the loop logs "Future
exception was never retrieved". That is so while a connection opens, and again while the driver
opens a second one to cancel the statement. There is no option for it (asyncpg 0.32), so the
future's failure counts as heard from the start; who waits for it gets it all the same.
"""

from typing import Any

from asyncpg import connect_utils


def quiet_handshakes() -> None:
    """Once per process; does nothing where the driver has changed."""
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
