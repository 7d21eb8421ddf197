"""Run the command line inside the test's process, as the shell would."""

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.cli.main import main
from support.shapes import Done, Penstock

APP = """
from penstock import Fail, Job, Penstock

app = Penstock()
model = app.queue("model", concurrency=2)
other = app.queue("other")

@app.job(queue=model, topic="essay")
async def mark(essay: str, job: Job, points: int = 7) -> dict:
    async with job.stage("READING", label="Reading it"):
        await job.progress(1, 2)
    return {"points": points}

@app.job(queue=model)
def refuse(why: str) -> None:
    raise Fail(why)

@app.job(queue=other)
def tell_pid(n: int) -> int:
    import os
    return os.getpid()
"""


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Restore the log handlers: the command line's handlers write to a stream of the test."""
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.raiseExceptions = True


@pytest.fixture
def penstock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Penstock:
    """`penstock("migrate", "up")`, in an empty working folder and without PENSTOCK_ variables."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    # No colours, and no wrapping at the width of the terminal that runs the tests.
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr("sys.argv", ["penstock", *words])
        with pytest.raises(SystemExit) as exited:
            main()
        code = exited.value.code
        assert isinstance(code, int)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run


@pytest.fixture
def db(
    database: str, monkeypatch: pytest.MonkeyPatch, penstock: Penstock
) -> Iterator[psycopg.Connection]:
    """A connection to the database that PENSTOCK_DSN names, with queues `model` and `other`."""
    assert penstock  # this fixture clears the environment first
    monkeypatch.setenv("PENSTOCK_DSN", database)
    with psycopg.connect(database, autocommit=True) as conn:
        for queue in ("model", "other"):
            conn.execute("select penstock.declare_queue(%s)", [queue])
            conn.execute("select penstock.declare_kind(%s, %s)", [queue, queue])
        yield conn


@pytest.fixture
def app(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, penstock: Penstock) -> str:
    """Write an app for the test's database to the working folder; return its name for APP."""
    assert penstock
    monkeypatch.setenv("PENSTOCK_DSN", database)
    name = f"app_{uuid.uuid4().hex[:12]}"  # a module is imported once per process
    (tmp_path / f"{name}.py").write_text(APP)
    return f"{name}:app"
