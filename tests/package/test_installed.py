"""The wheel in an empty environment: the commands that people run after `pip install`."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from package.installing import Installed

pytestmark = pytest.mark.timeout(300)

WAIT_SECONDS = 120
SYSTEMS = {"essays", "feedback", "marking", "scanner", "studio"}

APP = """
from penstock import Penstock

app = Penstock()
line = app.queue("line")

@app.job(queue=line)
def double(n: int) -> int:
    return 2 * n
"""

TYPED = """
from penstock import Penstock
app = Penstock()
queue = app.queue("line", concurrency=1)
reveal_type(queue.name)
app.queue("line", concurrency="one")
"""


def test_dev_runs_a_job_in_an_empty_folder(whole: Installed, folder: Path) -> None:
    """E1: `pip install 'penstock[all]'`, `penstock dev`, and nothing else."""
    words = [str(whole.home / "bin" / "penstock"), "dev", "--port", "0", "--json"]
    log = folder.parent / "dev.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            words,
            cwd=folder,
            env=whole.environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout
            greeting = process.stdout.readline()
            assert greeting, log.read_text()
            greeted = json.loads(greeting)
            job = run_job(greeted["url"], greeted["secret"])
            assert job["status"] == "succeeded", job
            assert job["result"]["text"]
            assert set(greeted["systems"]) == SYSTEMS
            answers = pages(greeted)
            assert answers["demo"] == 200
            assert set(answers.values()) <= {200, 401}, "some let nobody in without a sign-in"
            process.terminate()
            assert process.wait(WAIT_SECONDS) == 0, log.read_text()
        finally:
            process.kill()


def pages(greeted: dict[str, Any]) -> dict[str, int]:
    """How the page of each system answers, and the one that leads to them."""
    addresses = {**greeted["systems"], "demo": greeted["demo"]}
    deadline = time.monotonic() + WAIT_SECONDS
    answers: dict[str, int] = {}
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        while missing := addresses.keys() - answers:
            assert time.monotonic() < deadline, f"{missing} do not answer"
            for name in missing:
                try:
                    answers[name] = client.get(addresses[name]).status_code
                except httpx.ConnectError:
                    time.sleep(0.1)
    return answers


def run_job(url: str, secret: str) -> dict[str, Any]:
    """Submit what the greeting proposes; the job as it ended."""
    key = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=url, headers=key, timeout=30) as client:
        payload = {"answer": "6 times 7 is 42"}
        job = client.post("/v1/jobs", json={"kind": "feedback", "payload": payload}).json()
        deadline = time.monotonic() + WAIT_SECONDS
        while job["status"] not in {"succeeded", "failed"} and time.monotonic() < deadline:
            asked = client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=5"})
            job = asked.json()
        return dict(job)


def test_it_is_one_program_under_two_names(whole: Installed, folder: Path) -> None:
    version = whole.run("penstock", "--version", folder=folder)
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", version.stdout)
    as_script = whole.run("penstock", "--help", folder=folder)
    as_module = whole.run("python", "-m", "penstock", "--help", folder=folder)
    assert as_script.returncode == 0
    assert "worker" in as_script.stdout
    assert as_module.stdout == as_script.stdout
    assert list(folder.iterdir()) == []


def test_its_types_are_known_to_its_users(whole: Installed, folder: Path) -> None:
    (folder / "typed.py").write_text(TYPED)
    words = ["-m", "mypy", "--strict", "--python-executable", str(whole.python), "typed.py"]
    checked = whole.run(sys.executable, *words, folder=folder)
    messages = [line.split(": ", 2)[1:] for line in checked.stdout.splitlines()]
    assert [kind for kind, _ in messages[:2]] == ["note", "error"], checked.stdout
    assert messages[0][1] == 'Revealed type is "str"'
    assert 'has incompatible type "str"; expected "int | None"' in messages[1][1]
    assert checked.stdout.endswith("Found 1 error in 1 file (checked 1 source file)\n")


@pytest.mark.parametrize(
    ("shell", "typed"),
    [
        ("bash", {"COMP_WORDS": "penstock acc", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "penstock acc"}),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "penstock acc", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        ),
    ],
)
def test_shells_get_completions(
    shell: str, typed: dict[str, str], bare: Installed, folder: Path
) -> None:
    variable = "_PENSTOCK_COMPLETE"
    script = bare.run("penstock", folder=folder, extra={variable: f"source_{shell}"})
    assert f"{variable}=complete_{shell}" in script.stdout
    asked = {variable: f"complete_{shell}", **typed}
    words = bare.run("penstock", folder=folder, extra=asked).stdout
    assert re.findall(r"\baccount\b", words)
    assert "worker" not in words


def test_bash_completes_a_command(bare: Installed, folder: Path) -> None:
    """With the program's script, like a person who presses the key."""
    script = """
    eval "$(penstock --show-completion bash)"
    COMP_WORDS=(penstock migrate "") COMP_CWORD=2
    "$(complete -p penstock | sed 's/.* -F //; s/ .*//')" penstock
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = bare.run("bash", "-c", script, folder=folder)
    assert sorted(done.stdout.split()) == ["down", "status", "up"], done.stderr


def test_help_loads_nothing_that_serves_or_calls(bare: Installed, folder: Path) -> None:
    """An unneeded import would delay every command."""
    code = "import sys, penstock.cli; print(*sys.modules)"
    loaded = set(bare.run("python", "-c", code, folder=folder).stdout.split())
    assert "penstock.cli" in loaded
    assert not loaded & {"fastapi", "uvicorn", "aiohttp", "pydantic", "jinja2", "jsonschema"}


def test_without_extras_a_worker_runs_a_job(bare: Installed, folder: Path, migrated: str) -> None:
    (folder / "app.py").write_text(APP)
    database = {"PENSTOCK_DSN": migrated}
    code = "from app import app, double; print(app.sync.submit(double, n=21).id)"
    submitted = bare.run("python", "-c", code, folder=folder, extra=database)
    assert submitted.returncode == 0, submitted.stderr
    worked = bare.run("penstock", "worker", "app:app", "--once", folder=folder, extra=database)
    assert worked.returncode == 0, worked.stderr
    shown = bare.run(
        "penstock", "show", submitted.stdout.strip(), "--json", folder=folder, extra=database
    )
    assert json.loads(shown.stdout)["result"] == 42


@pytest.mark.parametrize(
    ("command", "extra"),
    [("dev", "server"), ("serve", "server"), ("model --real", "model")],
)
def test_the_error_of_a_command_without_its_extra_says_what_to_install(
    command: str, extra: str, bare: Installed, folder: Path
) -> None:
    done = bare.run("penstock", *command.split(), folder=folder)
    assert done.returncode == 1
    assert f"pip install 'penstock[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
