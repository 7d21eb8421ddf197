"""Addresses and settings of the demo: one environment for all its processes."""

import os
from dataclasses import dataclass
from pathlib import Path

from demo.systems import SYSTEMS
from parts import HOST, free_port
from penstock.base.settings import Settings
from penstock.security.roots import Roots, read_roots

EXAMPLES = Path(__file__).resolve().parent.parent
# Variables of the user that are dropped: the demo calls its own models, never real ones.
_NOT_OURS = (
    "ESSAYS_", "FEEDBACK_", "STUDIO_", "MARKING_", "SCANNER_", "MODEL_", "IMAGE_", "OLLAMA_",
    "AI_SERVICE_", "AI_MARKING_", "FUNCTION_", "ENABLE_ASYNC_FEEDBACK",
)  # fmt: skip
# Empty counts as not set, also if a .env has a value: the demo has its own address, and the name of
# a worker must end with its process id.
NOT_OURS = {"PENSTOCK_PUBLIC_URL": "", "PENSTOCK_WORKER_ID": ""}
# The variables with the secrets that sign each system's cookies.
SECRETS = ("ESSAYS_SECRET", "FEEDBACK_SECRET", "STUDIO_SECRET", "MARKING_SECRET")
_CODES = (
    "FEEDBACK_TEACHER_CODE", "STUDIO_OPERATOR_CODE", "MARKING_TEACHER_CODE",
    "MARKING_QUEUE_SECRET", "MARKING_FUNCTION_SECRET", "SCANNER_ADMIN_SECRET",
)  # fmt: skip
# The variable for the model's address in the file of `penstock dev`.
OWN_MODEL = "PENSTOCK_DEMO_MODEL"
# A mark whose function died is requested again after this time instead of ten minutes.
_MARK_TIMEOUT = "30s"
# The scanner's banner comes after eighteen seconds instead of three minutes; a tier takes two.
_SCANNER_TIME_SCALE, _TIER_SECONDS = "0.1", "2"


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the models; those of the web apps are opened before everything else."""

    model: int
    model_control: int
    essays: int
    function: int
    function_control: int

    @classmethod
    def choose(cls) -> "Ports":
        return cls(*(free_port() for _ in range(5)))


def environment(settings: Settings, base: str, ports: Ports) -> dict[str, str]:
    """Return the environment; `base` is the API's address, which the function calls back."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
    model, control = at(ports.model), at(ports.model_control)
    paths = (str(EXAMPLES), os.environ.get("PYTHONPATH"))
    return kept | NOT_OURS | secrets(read_roots(settings)) | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # Otherwise read from the working folder, which differs between the processes.
        "PENSTOCK_HOME": str(settings.home.resolve()),
        "PENSTOCK_SECRET": ",".join(settings.secrets),
        # The page shows that a model is unavailable; an explicit log level is kept.
        "PENSTOCK_LOG_LEVEL": "error" if settings.log_level == "warning" else settings.log_level,
        "PENSTOCK_LOG_FORMAT": settings.log_format,
        "PENSTOCK_INLINE": "0",
        "PENSTOCK_PUBLIC_URL": base,
        # All calls stay on this machine, even if a proxy is set.
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        OWN_MODEL: model,
        "OLLAMA_URL": model,
        "OLLAMA_MODEL": "llama3",
        "IMAGE_URL": model,
        "MODEL_CONTROL_URL": control,
        "AI_SERVICE_URL": at(ports.essays),
        "MARKING_FUNCTION_URL": f"{at(ports.function)}/mark",
        "MARKING_CONTROL_URL": at(ports.function_control),
        "MARKING_TIMEOUT": _MARK_TIMEOUT,
        "SCANNER_TIME_SCALE": _SCANNER_TIME_SCALE,
        "SCANNER_TIER_SECONDS": _TIER_SECONDS,
    }  # fmt: skip


def secrets(roots: Roots) -> dict[str, str]:
    """Derive the secrets, so that sessions survive a restart."""
    return {name: roots.keys(f"demo {name}")[0].hex()[:32] for name in (*SECRETS, *_CODES)}


def wanted_ports(first: int) -> dict[str, int]:
    """The web apps use the ports after the API's."""
    return {one.key: first + number for number, one in enumerate(SYSTEMS, start=1)}


def at(port: int) -> str:
    return f"http://{HOST}:{port}"
