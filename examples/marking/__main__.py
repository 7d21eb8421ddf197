"""Start everything:  python examples/marking [--port 8040] [--drive worker|http]

The function, a worker and the web app, as processes of their own; see ../launch.py. With
--drive http there is no worker: calls over HTTP do its work.
"""

import argparse
import os
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import launch
from parts import HOST, Part, free_port
from penstock import Penstock

PORT = 8040
DRIVES = ("worker", "http")
# A mark takes about so long: thirty of them can be watched.
FUNCTION_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python examples/marking", description="A class's answers, marked by a function."
    )
    launch.add_port(parser, "MARKING_PORT", PORT)
    parser.add_argument(
        "--drive",
        choices=DRIVES,
        default=os.environ.get("MARKING_DRIVE") or DRIVES[0],
        help="who takes jobs: a worker that stands by, or calls over HTTP",
    )
    given = parser.parse_args()
    if given.drive not in DRIVES:
        parser.error(f"MARKING_DRIVE is {given.drive!r}; it may be {' or '.join(DRIVES)}")
    port = launch.free_or_exit(parser, "--port", given.port)
    parts = function_parts()
    if given.drive == "worker":
        parts.append(Part("worker", ("penstock", "worker", "marking.jobs:app")))
    parts.append(launch.web_part("marking.app:web", port, *launch.LEAVE_SOON))
    code = settle(port, given.drive)
    # What is handed over when they end is waited for at the next start.
    greeting = [f"The results:  {{site}}/sign-in?code={code}"]
    launch.run("marking", parts, greeting, check=Penstock.outside)


def function_parts() -> list[Part]:
    """The function to start; none where one runs already. Sets its address for all parts."""
    if os.environ.get("MARKING_FUNCTION_URL"):
        return []
    port, control = free_port(), free_port()
    os.environ["MARKING_FUNCTION_URL"] = f"http://{HOST}:{port}/mark"
    os.environ["MARKING_CONTROL_URL"] = f"http://{HOST}:{control}"
    seconds = os.environ.get("FUNCTION_SECONDS") or f"{FUNCTION_SECONDS:g}"
    words = ("marking.function", "--port", str(port), "--control", str(control))
    return [Part("function", (*words, "--seconds", seconds), port)]


def settle(port: int, drive: str) -> str:
    """What the parts have to know in common; the teacher's code."""
    os.environ["MARKING_DRIVE"] = drive
    for name in ("MARKING_QUEUE_SECRET", "MARKING_FUNCTION_SECRET"):
        launch.common(name, secrets.token_urlsafe(12))
    # One secret for all processes of the web app; otherwise a restart would sign everybody out.
    launch.common("MARKING_SECRET", secrets.token_hex(32))
    # Where the function calls back; AI_MARKING_CALLBACK_URL says otherwise, as a tunnel needs it.
    launch.common("PENSTOCK_PUBLIC_URL", f"http://{HOST}:{port}")
    return launch.common("MARKING_TEACHER_CODE", secrets.token_urlsafe(12))


if __name__ == "__main__":
    main()
