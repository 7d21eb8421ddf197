"""Start everything:  python examples/feedback [--model simulated|real|URL] [--port 8010]

The model, a worker and the web app are processes of their own; see ../launch.py.
"""

import argparse
import os
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

import launch  # noqa: E402
from parts import HOST, Part, free_port  # noqa: E402

PORT = 8010
SIMULATED, REAL = "simulated", "real"
# About four seconds for an answer: a class of fifty waits for three and a half minutes.
MODEL_SECONDS = 4.0
MODEL_TOKENS = 70
# The model that `make model` fetches, by its name in Ollama's library.
REAL_NAME = "smollm2:135m"
SMALL_MODEL = FOLDER / "small_model.toml"
# F7 of the requirements: a worker that restarts now and then cannot grow for ever.
RECYCLE_AFTER = "1000"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python examples/feedback", description="Meine Aufgaben: feedback from one model."
    )
    parser.add_argument(
        "--model",
        default=os.environ.get("OLLAMA_URL") or SIMULATED,
        metavar="simulated|real|URL",
        help="a stand-in, a small real one (after `make model`), or the address of an Ollama",
    )
    launch.add_port(parser, "FEEDBACK_PORT", PORT)
    given = parser.parse_args()
    if given.model not in (SIMULATED, REAL) and "://" not in given.model:
        parser.error(f"--model is {given.model!r}; it must be simulated, real, or http://…")
    port = launch.free_or_exit(parser, "--port", given.port)
    model = model_parts(given.model)
    config = launch.common("FEEDBACK_CONFIG", str(FOLDER / "penstock.toml"))
    worker = ("penstock", "worker", config, "--recycle-after", RECYCLE_AFTER)
    parts = [*model, Part("worker", worker), launch.web_part("feedback.app:web", port)]
    code = launch.common("FEEDBACK_TEACHER_CODE", secrets.token_urlsafe(9))
    # One secret for all processes of the web app; otherwise a restart would sign everybody out.
    launch.common("FEEDBACK_SECRET", secrets.token_hex(32))
    greeting = ["Meine Aufgaben: {site}", f"Die Klasse:     {{site}}/klasse?code={code}"]
    launch.run("feedback", parts, greeting)


def model_parts(model: str) -> list[Part]:
    """Return the model to start, or none if it runs elsewhere; set its address for all parts."""
    if "://" in model:
        os.environ["OLLAMA_URL"] = model
        return []
    port, control = free_port(), free_port()
    os.environ["OLLAMA_URL"] = f"http://{HOST}:{port}"
    os.environ["MODEL_CONTROL_URL"] = f"http://{HOST}:{control}"
    words = ["penstock", "model", "--port", str(port), "--control", str(control)]
    if model == REAL:
        os.environ["OLLAMA_MODEL"] = REAL_NAME
        launch.common("FEEDBACK_CONFIG", str(SMALL_MODEL))
        words += ["--real", "--name", REAL_NAME]
    else:
        seconds = float(os.environ.get("MODEL_SECONDS") or MODEL_SECONDS)
        pace = MODEL_TOKENS / (seconds * 0.8)
        words += ["--latency", f"{seconds * 0.2:g}", "--tokens", str(MODEL_TOKENS)]
        words += ["--tokens-per-second", f"{pace:g}"]
    return [Part("model", tuple(words), port)]


if __name__ == "__main__":
    main()
