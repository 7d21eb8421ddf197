"""`doctor`: one line per check, an exit code for programs, and the same as JSON."""

import json

import psycopg
import pytest

from support.shapes import Penstock


def test_an_embedded_database_has_no_findings(penstock: Penstock) -> None:
    first = penstock("doctor")
    assert first.code == 0
    assert "It is installed at the first use." in first.out
    assert penstock("migrate", "up").code == 0
    done = penstock("doctor")
    assert (done.code, done.err) == (0, "")
    *lines, verdict = done.out.splitlines()
    assert verdict == "All is well."
    assert {line.split()[0] for line in lines} == {"ok"}
    findings = json.loads(penstock("doctor", "--json").out)
    assert [finding["name"] for finding in findings] == [line.split()[1] for line in lines]
    assert set(findings[0]) == {"name", "level", "message", "advice"}


def test_a_bad_finding_is_exit_code_1_and_says_what_to_do(
    penstock: Penstock, db: psycopg.Connection
) -> None:
    db.execute("select penstock.submit_job('model', '{}')")
    db.execute("update penstock.setting set partitions_ahead = default")
    db.execute("select penstock.make_partitions()")
    done = penstock("doctor")
    assert done.code == 1
    [line] = [line for line in done.out.splitlines() if " queues " in line]
    assert line.split()[0] == "bad"
    assert line.endswith("no worker is alive. Start a worker: `penstock worker APP`.")
    assert done.out.splitlines()[-1] == "2 bad, 0 warnings."  # the test server has fsync off
    assert penstock("doctor", "--json").code == 1


def test_a_server_that_is_not_there_is_a_finding(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DSN", "postgresql://u:open-sesame@127.0.0.1:1/jobs")
    done = penstock("doctor")
    assert done.code == 1
    assert done.out.startswith("bad      connection    The database at 127.0.0.1:1/jobs cannot be")
    assert "Connection refused. Start the server, or correct PENSTOCK_DSN" in done.out
    assert "open-sesame" not in done.out + done.err


def test_an_app_is_checked_too(penstock: Penstock, app: str) -> None:
    done = penstock("doctor", app)
    assert done.out.startswith(f"ok       app           {app} declares 2 queues and 3 job kinds\n")
    done = penstock("doctor", "nowhere:app")
    assert done.code == 1
    assert done.out.startswith("bad      app           There is no module nowhere")
    assert "connection" in done.out
