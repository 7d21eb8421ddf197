"""Settings that sessions begin with, as operators give them to a role or a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import psycopg
from psycopg import sql

Of = Literal["database", "role"]


@contextmanager
def sessions_with(dsn: str, of: Of, **settings: str) -> Iterator[None]:
    """For every session of this database that begins inside the block; for a role: its own."""
    _alter(dsn, of, settings)
    yield
    _alter(dsn, of, dict.fromkeys(settings))


def _alter(dsn: str, of: Of, settings: dict[str, str] | dict[str, None]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set default_transaction_read_only = off")
        whom = sql.SQL("database {}").format(sql.Identifier(conn.info.dbname))
        if of == "role":
            role = sql.Identifier(conn.info.user)
            whom = sql.SQL("role {} in {}").format(role, whom)
        for name, value in settings.items():
            setting = sql.Identifier(*name.split("__"))
            change = sql.SQL("reset {}").format(setting)
            if value is not None:
                change = sql.SQL("set {} = {}").format(setting, sql.Literal(value))
            conn.execute(sql.SQL("alter {} {}").format(whom, change))
