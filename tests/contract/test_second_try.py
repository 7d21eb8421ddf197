"""`make test` tries once more what failed, and names at the very end what passed only then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "second_try.py"

TESTS = """
from pathlib import Path
import pytest

def first_time(name):
    if not (tried := Path(name)).exists():
        tried.touch()
        return True

def test_sound():
    pass

def test_unsteady():
    assert not first_time("unsteady")

@pytest.fixture
def unsteady():
    yield
    assert not first_time("end")

def test_unsteady_at_its_end(unsteady):
    pass

@pytest.mark.later
def test_unsteady_later():
    assert not first_time("later")

@pytest.mark.broken
def test_broken():
    raise AssertionError
"""
# `-n 2`: as make test runs what is not marked.
TOGETHER, LATER = '-n 2 -m "not later and not broken"', "-m later"
UNSTEADY = [
    "test_tiny.py::test_unsteady",
    "test_tiny.py::test_unsteady_at_its_end",
    "test_tiny.py::test_unsteady_later",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  later: a\n  broken: b\n")
    (tmp_path / "test_tiny.py").write_text(TESTS)
    return tmp_path


def run(folder: Path, *parts: str, record: Path | None = None) -> tuple[int, list[str]]:
    """The exit code, and what is printed."""
    env = {
        **os.environ,
        "SECOND_TRIES": str(record or ""),
        # All other plugins together take longer to load than these tests to run.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p xdist",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *parts],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_what_passed_in_a_second_try_is_named_after_all_parts(folder: Path) -> None:
    code, lines = run(folder, TOGETHER, LATER)
    assert code == 0
    assert lines[-4:] == ["--- 3 passed only in a second try, and must be mended:", *UNSTEADY]


def test_nothing_is_named_where_all_passed_at_once(folder: Path) -> None:
    code, lines = run(folder, "-k sound")
    assert code == 0
    assert not [line for line in lines if "once more" in line or "second try" in line]


def test_what_fails_twice_is_red_and_ends_the_run(folder: Path) -> None:
    """What passed in a second try is named all the same, also that of an earlier run."""
    record = folder / "record"
    record.write_text("test_before.py::test_of_an_earlier_run\n")
    code, lines = run(folder, "-k 'its_end or broken'", LATER, record=record)
    named = ["test_before.py::test_of_an_earlier_run", UNSTEADY[1]]
    assert code == 1
    assert lines[-3:] == ["--- 2 passed only in a second try, and must be mended:", *named]
    assert record.read_text().splitlines() == named


def test_what_cannot_run_is_not_tried_again(folder: Path) -> None:
    code, lines = run(folder, "no_such_folder", LATER)
    assert code not in (0, 1)
    assert not [line for line in lines if "once more" in line or "-m later" in line]
