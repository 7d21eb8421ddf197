"""Readers of the files in deploy/: instructions, services, manifests, and their commands."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import typer.main
import yaml

import penstock
from penstock.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
TOML = KUBERNETES / "penstock.toml"
Document = dict[str, Any]


@cache
def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each on one line, without comments."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def instruction(word: str) -> str:
    """Return the last instruction of a kind, which is the effective one."""
    return [rest for name, rest in instructions() if name == word][-1]


def environment() -> dict[str, str]:
    """What the image sets."""
    pairs = (word.partition("=") for word in shlex.split(instruction("ENV")))
    return {name: value for name, _, value in pairs}


@cache
def compose() -> Document:
    found: Document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


@cache
def manifests() -> list[Document]:
    """Every document of every manifest, but not the kustomization."""
    return [
        document
        for path in sorted(KUBERNETES.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text())
    ]


@cache
def kustomization() -> Document:
    found: Document = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return found


def pod(document: Document) -> Document:
    found: Document = document["spec"]["template"]["spec"]
    return found


def manifest(kind: str, name: str) -> Document:
    [found] = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pods() -> list[tuple[str, Document]]:
    """Yield name and pod of each workload."""
    return [
        (document["metadata"]["name"], pod(document))
        for document in manifests()
        if "template" in document.get("spec", {})
    ]


def main_container(name: str, sort: str) -> Document:
    """Return the only container of that pod."""
    [found] = dict(pods())[name][sort]
    return dict(found)


@cache
def known_variables() -> set[str]:
    """The settings that the program reads from its environment."""
    source = (Path(penstock.__file__).parent / "base" / "settings.py").read_text()
    return set(re.findall(r'"(PENSTOCK_[A-Z_]+)"', source))


def calls(line: str) -> Iterator[list[str]]:
    """Each call of penstock in a line of shell, as its arguments."""
    for piece in re.split(r"[;|]|&&|\bdo\b|\buntil\b", line):
        words = shlex.split(piece) if piece.count('"') % 2 == 0 and "'" not in piece else []
        if words[:1] == ["penstock"]:
            yield words[1:]


def check(arguments: Sequence[str]) -> None:
    """Raise if the command line would refuse it; nothing is run."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("penstock", list(arguments))
    while isinstance(command, click.Group) or hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
