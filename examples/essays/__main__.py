"""Start everything:  python examples/essays [--port 8000]

The model, a worker and the web app, as processes of their own; see ../launch.py.
"""

import argparse
import os
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import launch
from parts import HOST, Part

PORT = 8000
MODEL_PORT = 8001


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python examples/essays",
        description="Practise writing: essays that a slow model scores in the background.",
    )
    launch.add_port(parser, "ESSAYS_PORT", PORT)
    parser.add_argument(
        "--model-port",
        default=os.environ.get("MODEL_PORT") or str(MODEL_PORT),
        help=f"where the stand-in for the model listens (MODEL_PORT, or {MODEL_PORT})",
    )
    given = parser.parse_args()
    parts = [
        Part("worker", ("penstock", "worker", "essays.jobs:app")),
        launch.web_part("essays.app:web", launch.free_or_exit(parser, "--port", given.port)),
    ]
    if not os.environ.get("AI_SERVICE_URL"):
        port = launch.free_or_exit(parser, "--model-port", given.model_port)
        os.environ["AI_SERVICE_URL"] = f"http://{HOST}:{port}"
        parts.insert(0, Part("model", ("essays.model", "--port", str(port)), port))
    # One secret for all processes of the web app; otherwise a restart would sign everybody out.
    launch.common("ESSAYS_SECRET", secrets.token_hex(32))
    launch.run("essays", parts, ["Practise at {site}"])


if __name__ == "__main__":
    main()
