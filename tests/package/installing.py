"""The wheel as users get it: built from this tree, and installed in an empty environment."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = str(ROOT / ".ci" / "uv")
COMMAND_SECONDS = 120


@dataclass(frozen=True)
class Built:
    wheel: Path
    source: Path


def build(tree: Path, out: Path) -> Built:
    """Build both distributions by the backend that pyproject.toml names."""
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(words, cwd=tree, check=True, capture_output=True, timeout=COMMAND_SECONDS)
    (wheel,) = out.glob("*.whl")
    (source,) = out.glob("*.tar.gz")
    return Built(wheel, source)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, its dependencies, and nothing of this tree."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a fresh shell with this environment activated."""
        ours = ("PENSTOCK_", "PYTHON", "VIRTUAL_ENV", "_PENSTOCK")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "COLUMNS": "200", "NO_COLOR": "1"} | more

    def run(
        self, *words: str, folder: Path, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=folder,
            env=self.environment(**(extra or {})),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )


def install(wheel: Path, extra: str, home: Path) -> Installed:
    """Install the wheel with the versions of the lock, from what uv has kept where it can."""
    name = f"penstock[{extra}]" if extra else "penstock"
    installed = Installed(home)
    _uv("venv", "--quiet", "--python", sys.executable, str(home))
    words = ["pip", "install", "--quiet", "--python", str(installed.python)]
    words += ["--constraint", str(ROOT / "requirements.lock"), f"{name} @ {wheel.as_uri()}"]
    try:
        _uv(*words, "--offline")
    except subprocess.CalledProcessError:
        _uv(*words)
    return installed


def _uv(*words: str) -> None:
    subprocess.run([UV, *words], check=True, capture_output=True, timeout=COMMAND_SECONDS)
