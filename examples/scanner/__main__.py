"""Start everything:  python examples/scanner [--time-scale 0.1] [--port 8030]

Two workers and the web app, as processes of their own; see ../launch.py. Some scans kill their
worker, which is started again.
"""

import argparse
import os
import secrets
import sys
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import launch
from parts import Part

PORT = 8030
# Three minutes until the banner are eighteen seconds.
TIME_SCALE = 0.1
# One that a scan has killed is missed by nobody while it starts again.
WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python examples/scanner", description="A package scanner that recovers by itself."
    )
    parser.add_argument(
        "--time-scale",
        default=os.environ.get("SCANNER_TIME_SCALE") or f"{TIME_SCALE:g}",
        help="all waits shortened to this part of what they are, from 0.001 to 1 (default 0.1)",
    )
    launch.add_port(parser, "SCANNER_PORT", PORT)
    given = parser.parse_args()
    port = launch.free_or_exit(parser, "--port", given.port)
    os.environ["SCANNER_TIME_SCALE"] = given.time_scale
    worker = ("penstock", "worker", "scanner.jobs:app")
    parts = [
        *(Part(f"worker {number}", worker) for number in range(1, WORKERS + 1)),
        launch.web_part("scanner.app:web", port, *launch.LEAVE_SOON),
    ]
    secret = launch.common("SCANNER_ADMIN_SECRET", secrets.token_urlsafe(12))
    greeting = [
        "Submit a package:  {site}",
        f"As its operator:   {{site}}/operator#{quote(secret)}",
        f'As JSON:           curl -H "Authorization: Bearer {secret}" \\',
        "                     {site}/api/v1/admin/queue/status   (or …/metrics)",
    ]
    # No part needs another one to finish what it does.
    launch.run("scanner", parts, greeting, end_together=True)


if __name__ == "__main__":
    main()
