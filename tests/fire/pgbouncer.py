"""A real PgBouncer in transaction mode, between some programs of the world and Postgres."""

import os
import shutil
from pathlib import Path

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
# The user it runs as: it refuses to run as root.
USER = "nobody"


def words(folder: Path, port: int, server_port: int, database: str, role: str) -> list[str]:
    """Return its command, with a file of settings in this folder."""
    assert PROGRAM
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        "[databases]\n"
        f"{database} = host=127.0.0.1 port={server_port} dbname={database} user={role}\n"
        "[pgbouncer]\n"
        "listen_addr = 127.0.0.1\n"
        f"listen_port = {port}\n"
        "unix_socket_dir =\n"
        "auth_type = any\n"
        "pool_mode = transaction\n"
        "default_pool_size = 8\n"
        "max_client_conn = 200\n"
        # Reconnect at once to a server that is back; report an unavailable one at once.
        "server_login_retry = 0.5\n"
        "query_wait_timeout = 10\n"
        "log_connections = 0\n"
        "log_disconnections = 0\n"
    )
    become = ["-u", USER] if os.geteuid() == 0 else []
    return [PROGRAM, *become, str(settings)]
