"""Start everything:  python examples/studio [--model simulated|URL] [--port 8020]

The model, a worker and the web app, as processes of their own; see ../launch.py.
"""

import argparse
import os
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import launch
from parts import HOST, Part, free_port

PORT = 8020
SIMULATED = "simulated"
# A picture takes about so long: eight of them can be watched.
MODEL_SECONDS = 2.0
MODEL_SLOTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python examples/studio", description="An image studio sold for credits."
    )
    parser.add_argument(
        "--model",
        default=os.environ.get("IMAGE_URL") or SIMULATED,
        metavar="simulated|URL",
        help="one that draws landscapes, or the address of an OpenAI-compatible server",
    )
    launch.add_port(parser, "STUDIO_PORT", PORT)
    given = parser.parse_args()
    if given.model != SIMULATED and "://" not in given.model:
        parser.error(f"--model is {given.model!r}; it may be simulated, or http://…")
    port = launch.free_or_exit(parser, "--port", given.port)
    parts = [
        *model_parts(given.model),
        Part("worker", ("penstock", "worker", "studio.jobs:app")),
        launch.web_part("studio.app:web", port, *launch.LEAVE_SOON),
    ]
    code = launch.common("STUDIO_OPERATOR_CODE", secrets.token_urlsafe(9))
    # One secret for all processes of the web app; otherwise a restart would sign everybody out.
    launch.common("STUDIO_SECRET", secrets.token_hex(32))
    greeting = ["The studio:       {site}", f"As its operator:  {{site}}/operator?code={code}"]
    launch.run("studio", parts, greeting)


def model_parts(model: str) -> list[Part]:
    """The model to start; none where one runs already. Sets its address for all parts."""
    if model != SIMULATED:
        os.environ["IMAGE_URL"] = model
        return []
    port, control = free_port(), free_port()
    os.environ["IMAGE_URL"] = f"http://{HOST}:{port}"
    os.environ["MODEL_CONTROL_URL"] = f"http://{HOST}:{control}"
    seconds = os.environ.get("MODEL_SECONDS") or f"{MODEL_SECONDS:g}"
    words = ("penstock", "model", "--port", str(port), "--control", str(control))
    return [Part("model", (*words, "--latency", seconds, "--slots", str(MODEL_SLOTS)), port)]


if __name__ == "__main__":
    main()
