"""Which files a job passes through, from `POST /v1/jobs` to the client that watches it.

python bench/job_path.py          print the files, Python and SQL, with how often each was entered

A server with a worker (`penstock serve --worker`) runs under `sys.setprofile`, which records each
call of a function of the package. The job is submitted over HTTP while a client watches it, and
runs until the client has its result. Calls in an idle period of the same length are subtracted,
since they are the server's own upkeep. Postgres counts calls of its functions (`track_functions`),
except those that the planner inlines into a query.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import asyncpg

from penstock.db.embedded.database import Embedded

APP = """
from penstock import Job, Penstock
app = Penstock()
queue = app.queue("q", concurrency=4)
app.plan("free", default=True, concurrency=2)

@app.job(queue=queue, account="account")
async def mark(answer: str, account: str, job: Job) -> dict:
    await job.progress(1, 2)
    return {"words": len(answer.split())}
"""
KEY = "x" + os.urandom(24).hex()
DEADLINE_SECONDS = 60
# The longest time until a backend of Postgres reports its counts of calls.
REPORTED_SECONDS = 12


def traced(out: str, arguments: list[str]) -> None:
    """Run the program `penstock`, and write its calls to `out` at each SIGUSR1."""
    import penstock

    root = str(Path(penstock.__file__).parent)
    calls: Counter[str] = Counter()

    def note(frame, event, _argument):  # noqa: ANN001, ANN202
        if event == "call" and frame.f_code.co_filename.startswith(root):
            calls[frame.f_code.co_filename[len(root) + 1 :]] += 1

    def write(*_):  # noqa: ANN002, ANN202
        part = Path(out + ".part")
        part.write_text(json.dumps(calls))
        part.rename(out)
        calls.clear()

    import threading

    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(note)
    sys.setprofile(note)
    sys.argv = ["penstock", *arguments]
    import runpy

    runpy.run_module("penstock", run_name="__main__")


async def counts(process: subprocess.Popen[str], out: Path) -> Counter[str]:
    """Return the calls since the last request."""
    return await asyncio.to_thread(_counts, process, out)


def _counts(process: subprocess.Popen[str], out: Path) -> Counter[str]:
    process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not out.exists():
        assert time.monotonic() < deadline, "the server does not answer SIGUSR1"
        time.sleep(0.01)
    found: Counter[str] = Counter(json.loads(out.read_text()))
    out.unlink()
    return found


async def one_job(url: str) -> None:
    """Submit a job and watch it until the stream has its result."""
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"kind": "mark", "payload": {"answer": "6 times 7 is 42", "account": "u1"}}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{url}/v1/jobs", json=body) as answer:
            assert answer.status == 201, await answer.text()
            job = (await answer.json())["id"]
        async with http.get(f"{url}/v1/jobs/{job}/events") as stream:
            async for line in stream.content:
                if b'"succeeded"' in line:
                    return
    raise AssertionError("the stream ended without a result")


async def measure(folder: Path) -> tuple[Counter[str], Counter[str]]:
    (folder / "marks.py").write_text(APP)
    out = folder / "calls.json"
    running = await asyncio.to_thread(Embedded.use, folder / "home")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")},
        "PENSTOCK_HOME": str(folder / "home"),
        "PENSTOCK_SECRET": KEY,
    }
    arguments = ["serve", "marks:app", "--worker", "--port", "0", "--json"]
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, __file__, "--traced", str(out), *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout
        lines = []
        while not (found := re.search(r"http://[\d.]+:\d+", lines[-1] if lines else "")):
            lines.append(await asyncio.to_thread(process.stdout.readline))
            assert lines[-1], "".join(lines)
        url = found[0]
        sql = await sql_counts(running)
        for _ in range(3):  # caches and connections
            await one_job(url)
        await counts(process, out)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(REPORTED_SECONDS)
        begun = loop.time()
        await counts(process, out)
        before = await sql()
        begun = loop.time()
        await one_job(url)
        python = await counts(process, out)
        await asyncio.sleep(REPORTED_SECONDS)
        after = await sql()
        took = loop.time() - begun
        await counts(process, out)
        idle_before = await sql()
        await asyncio.sleep(took)
        idle = await counts(process, out)
        idle_sql = await sql() - idle_before
        return Counter(
            {name: n for name, n in python.items() if n > idle[name]}
        ), after - before - idle_sql
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_SECONDS)
        await asyncio.to_thread(running.leave)


async def sql_counts(running: Embedded):  # noqa: ANN201
    """Return a function that reads how often each SQL function was called so far."""
    admin = await asyncpg.connect(running.admin_dsn)
    await admin.execute("alter system set track_functions = 'all'")
    await admin.execute("select pg_reload_conf()")

    async def read() -> Counter[str]:
        await admin.execute("select pg_stat_clear_snapshot()")
        rows = await admin.fetch(
            "select funcname, sum(calls)::int as calls from pg_stat_user_functions"
            " where schemaname = 'penstock' group by 1"
        )
        return Counter({row["funcname"]: row["calls"] for row in rows})

    return read


def files_of(functions: Counter[str]) -> Counter[str]:
    """Return the SQL files that define the functions."""
    import penstock

    sql = Path(penstock.__file__).parent / "sql" / "functions"
    found: Counter[str] = Counter()
    for path in sorted(sql.rglob("*.sql")):
        for name in re.findall(r"(?:function|procedure) penstock\.(\w+)\(", path.read_text()):
            if functions[name]:
                found[str(path.relative_to(sql))] += functions[name]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-path-") as folder:
        python, functions = asyncio.run(measure(Path(folder)))
    sql = files_of(functions)
    for title, found in (("Python", python), ("SQL", sql)):
        print(f"{len(found)} {title} files")
        for name, n in sorted(found.items()):
            print(f"  {n:6} {name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--traced"]:
        traced(sys.argv[2], sys.argv[3:])
    else:
        main()
