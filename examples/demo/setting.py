"""Where everything of the demo is, and what its processes are told: one environment for all."""

import os
from dataclasses import dataclass
from pathlib import Path

from demo.systems import SYSTEMS
from parts import HOST, free_port
from penstock.base.settings import Settings
from penstock.security.roots import Roots, read_roots

EXAMPLES = Path(__file__).resolve().parent.parent
# Of whoever starts the demo: it calls its own models, and no real one that is set up there.
_NOT_OURS = (
    "ESSAYS_", "FEEDBACK_", "STUDIO_", "MARKING_", "SCANNER_", "MODEL_", "IMAGE_", "OLLAMA_",
    "AI_SERVICE_", "AI_MARKING_", "FUNCTION_", "ENABLE_ASYNC_FEEDBACK",
)  # fmt: skip
# Empty counts as not set, also where a .env says something: the demo answers at its own address,
# and a worker's name ends with the number of its process.
NOT_OURS = {"PENSTOCK_PUBLIC_URL": "", "PENSTOCK_WORKER_ID": ""}
# The names under which each system looks for what signs its cookies.
SECRETS = ("ESSAYS_SECRET", "FEEDBACK_SECRET", "STUDIO_SECRET", "MARKING_SECRET")
_CODES = (
    "FEEDBACK_TEACHER_CODE", "STUDIO_OPERATOR_CODE", "MARKING_TEACHER_CODE",
    "MARKING_QUEUE_SECRET", "MARKING_FUNCTION_SECRET", "SCANNER_ADMIN_SECRET",
)  # fmt: skip
# How the file of `penstock dev` names the address of its model.
OWN_MODEL = "PENSTOCK_DEMO_MODEL"
# A mark whose function died is asked for again after this, and not after ten minutes.
_MARK_TIMEOUT = "30s"
# Three minutes until the scanner's banner are eighteen seconds, and a tier takes two.
_SCANNER_TIME_SCALE, _TIER_SECONDS = "0.1", "2"


@dataclass(frozen=True, slots=True)
class Ports:
    """Of the models; those of the web apps are open before anything else is."""

    model: int
    model_control: int
    essays: int
    function: int
    function_control: int

    @classmethod
    def choose(cls) -> "Ports":
        return cls(*(free_port() for _ in range(5)))


def environment(settings: Settings, base: str, ports: Ports) -> dict[str, str]:
    """`base`: where this machine reaches the API, and so where the function calls back."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
    model, control = at(ports.model), at(ports.model_control)
    paths = (str(EXAMPLES), os.environ.get("PYTHONPATH"))
    return kept | NOT_OURS | secrets(read_roots(settings)) | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # What they would else read in the working folder, which is another one for them.
        "PENSTOCK_HOME": str(settings.home.resolve()),
        "PENSTOCK_SECRET": ",".join(settings.secrets),
        # That a model is away, people see on the page; whoever asks for more gets it.
        "PENSTOCK_LOG_LEVEL": "error" if settings.log_level == "warning" else settings.log_level,
        "PENSTOCK_LOG_FORMAT": settings.log_format,
        "PENSTOCK_INLINE": "0",
        "PENSTOCK_PUBLIC_URL": base,
        # All calls stay on this machine, whatever proxy there is.
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
    """The same at every start: who is signed in stays so."""
    return {name: roots.keys(f"demo {name}")[0].hex()[:32] for name in (*SECRETS, *_CODES)}


def wanted_ports(first: int) -> dict[str, int]:
    """The web apps lie behind the API, one by one."""
    return {one.key: first + number for number, one in enumerate(SYSTEMS, start=1)}


def at(port: int) -> str:
    return f"http://{HOST}:{port}"
