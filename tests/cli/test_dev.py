"""`dev`: everything in one process, on a database that it brings up itself."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from shapes import Penstock

WAIT_SECONDS = 40


@pytest.mark.timeout(120)
def test_the_demo_runs_a_job_with_nothing_but_a_folder(penstock: Penstock, tmp_path: Path) -> None:
    """E1: without a database, a model or an app."""
    assert penstock  # it clears the environment
    told = run(tmp_path)
    with told["process"] as process:
        try:
            with httpx.Client(
                base_url=told["url"], headers={"Authorization": f"Bearer {told['secret']}"}
            ) as client:
                job = client.post(
                    "/v1/jobs", json={"kind": "feedback", "payload": {"answer": "6 times 7 is 42"}}
                ).json()
                deadline = time.monotonic() + WAIT_SECONDS
                while (job := client.get(f"/v1/jobs/{job['id']}").json())["status"] != "succeeded":
                    assert time.monotonic() < deadline, job
                    time.sleep(0.1)
                assert job["result"]["text"]
            process.terminate()
            process.communicate(timeout=WAIT_SECONDS)
            assert process.returncode == 0
        finally:
            process.kill()


def test_an_app_is_served_on_a_server_that_it_brings_up(
    penstock: Penstock, app: str, blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock
    monkeypatch.setenv("PENSTOCK_DSN", blank)
    monkeypatch.setenv("PENSTOCK_SECRET", "a-secret-that-is-long-enough")
    told = run(tmp_path, app)
    with told["process"] as process:
        try:
            assert "secret" not in told, "whoever has set it knows it"
            assert told["kinds"] == ["mark", "refuse", "tell_pid"]
        finally:
            process.kill()


def run(folder: Path, *words: str) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "dev", *words, "--port", "0", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    greeting = process.stdout.readline()
    assert greeting, process.stderr and process.stderr.read()
    return {**json.loads(greeting), "process": process}
