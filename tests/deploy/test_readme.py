"""deploy/README.md: its commands and names are correct."""

import re
import stat
import subprocess
from pathlib import Path

from deploy.files import DEPLOY, ROOT, known_variables
from penstock.base.settings import read_env_file

README = (DEPLOY / "README.md").read_text()


def test_its_passwords_are_those_that_compose_needs(tmp_path: Path) -> None:
    [line] = re.findall(r"^\(umask .*$", README, re.MULTILINE)
    subprocess.run(["/bin/sh", "-euc", line], cwd=tmp_path, check=True)
    made = read_env_file(tmp_path / ".env")
    wanted = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    assert made.keys() == wanted
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in made.values()), "fit for a DSN"
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600


def test_its_variables_are_settings() -> None:
    variables = set(re.findall(r"\b(PENSTOCK_[A-Z_]+)\b", README))
    assert variables - {"PENSTOCK_DB_PASSWORD"} <= known_variables()


def test_its_files_exist() -> None:
    named = re.findall(r"`((?:kubernetes|postgres)/[\w.]+)`", README)
    assert len(named) >= 3
    assert all((DEPLOY / name).is_file() for name in named)
    assert all((ROOT / name).exists() for name in re.findall(r"\bdeploy/\w+", README))
