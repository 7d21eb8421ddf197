"""Run parts of the tests one after the other, and try once more what fails, with nothing beside it.

    .ci/second_try.py '-n 4 -m "not alone"' '-m alone'     (each part is arguments of pytest)

A test that passes only in its second try does not make the run red. It is named after all parts,
since it needs to be mended: a busy machine, or an order of tests, decides what it says. With
SECOND_TRIES, the path of a file, runs that follow each other name such tests together.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
PYTEST = (sys.executable, "-m", "pytest", "-q")
SECOND = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")
TESTS_FAILED = 1


def main() -> None:
    record = Path(os.environ["SECOND_TRIES"]) if os.environ.get("SECOND_TRIES") else None
    passed_later = record.read_text().splitlines() if record and record.exists() else []
    code = 0
    for part in sys.argv[1:]:
        code, passed = run(shlex.split(part))
        passed_later += passed
        if code:
            break
    if record:
        record.write_text("".join(f"{test}\n" for test in passed_later))
    if passed_later:
        print(f"\n--- {len(passed_later)} passed only in a second try, and must be mended:")
        print("\n".join(passed_later), flush=True)
    sys.exit(code)


def run(part: list[str]) -> tuple[int, list[str]]:
    """Run one part, twice where tests fail; its exit code, and what passed only the second time."""
    code = pytest(part)
    if code != TESTS_FAILED:
        return code, []
    failed = failures()
    print("--- what failed is tried once more, alone:", flush=True)
    code = pytest([*part, *SECOND])
    return code, sorted(failed - failures())


def pytest(arguments: list[str]) -> int:
    print(shlex.join(["pytest", *arguments]), flush=True)
    return subprocess.call([*PYTEST, *arguments])


def failures() -> set[str]:
    return set(json.loads(FAILED.read_text())) if FAILED.exists() else set()


if __name__ == "__main__":
    main()
