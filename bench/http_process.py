"""A server in a separate process: the API as `penstock serve` runs it, or bare routes.

    PENSTOCK_DSN=... python bench/http_process.py api|bare [--profile FILE]

Both run on uvicorn with the same parser and loop. The bare one uses Starlette alone: it parses a
JSON body, runs one statement on a connection of the same kind of pool, and answers with its row.
bench/http.py starts them, by `http_process`.
"""

import argparse
import asyncio
import cProfile
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

SECRET = secrets.token_hex(32)
READY_SECONDS = 30.0
STOP_SECONDS = 40.0
_POLL_SECONDS = 0.02

_INSERT = (
    "insert into bare_job values"
    " (gen_random_uuid(), 'q', 1, 'queued', 0, null, null, cast(cast($1 as text) as jsonb))"
    " returning id, state"
)
_SELECT = "select id, queue, state, attempt, cast(payload as text) from bare_job where id = $1"


@asynccontextmanager
async def http_process(dsn: str, which: str, *arguments: str) -> AsyncIterator[int]:
    """Start a server, yield its port when it accepts requests, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-http-") as folder:
        log, port_file = Path(folder) / "log", Path(folder) / "port"
        with log.open("wb") as errors, port_file.open("wb") as output:
            started = subprocess.Popen(  # noqa: ASYNC220  # returns at once
                [sys.executable, __file__, which, *arguments],
                env={**os.environ, "PENSTOCK_DSN": dsn, "PENSTOCK_SECRET": SECRET},
                stdout=output,
                stderr=errors,
            )
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not port_file.read_text().endswith("\n"):
                    if started.poll() is not None:
                        raise RuntimeError(f"the server exited:\n{log.read_text()}")
                    await asyncio.sleep(_POLL_SECONDS)
            yield int(port_file.read_text())
            started.send_signal(signal.SIGTERM)
            await asyncio.to_thread(started.wait, STOP_SECONDS)
        finally:
            if started.poll() is None:
                started.kill()
                started.wait()
        if output_left := log.read_text().replace("Stopping: open requests may finish.", "", 1):
            shown = f"output of a server:\n{output_left[:2_000]}"
            print(shown if len(output_left) > 50 else "", end="")


def _serve_api() -> None:
    from app import build
    from penstock.cli.serving.serving import listen, run

    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        run(build(), sock, worker=False, on_ready=lambda _: print(port, flush=True))


def _serve_bare() -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from penstock.cli.serving.serving import listen
    from penstock.db.connections.pool import Pool, open_pool

    pool: Pool

    async def insert(request: Request) -> JSONResponse:
        form = await request.json()
        [row] = await pool.fetch(_INSERT, _text(form["payload"]))
        return JSONResponse({"id": str(row["id"]), "status": row["state"]}, status_code=201)

    async def select(request: Request) -> JSONResponse:
        [row] = await pool.fetch(_SELECT, request.path_params["id"])
        job = {"id": str(row["id"]), "queue": row["queue"], "status": row["state"]}
        return JSONResponse({**job, "attempt": row["attempt"], "payload": row["payload"]})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        nonlocal pool
        pool = await open_pool(os.environ["PENSTOCK_DSN"])
        print(sock.getsockname()[1], flush=True)
        yield
        await pool.close()

    routes = [
        Route("/v1/jobs", insert, methods=["POST"]),
        Route("/v1/jobs/{id:uuid}", select),
    ]
    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(
            Starlette(routes=routes, lifespan=lifespan),
            http="httptools",
            ws="none",
            lifespan="on",
            loop="uvloop",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        server = uvicorn.Server(config)
        server.run(sockets=[sock])


def _text(payload: Any) -> str:
    import json

    return json.dumps(payload)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=["api", "bare"])
    parser.add_argument("--profile", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    serve = {"api": _serve_api, "bare": _serve_bare}[arguments.which]
    if arguments.profile is None:
        serve()
        return
    profile = cProfile.Profile()
    profile.runcall(serve)
    profile.dump_stats(arguments.profile)


if __name__ == "__main__":
    _main()
