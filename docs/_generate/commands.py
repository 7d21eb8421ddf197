"""The page of the command line, from the commands themselves.

Typer's classes of commands change with its versions; their attributes do not.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from _generate.page import Undocumented, code, codes, described, page, read_words, sentence, table
from penstock.cli.main import app
from penstock.cli.output.console import FAILED, INTERRUPTED, WRONG_USE

WORDS = read_words("cli")
PANELS: dict[str, str] = WORDS["panels"]


def render() -> str:
    program: Any = get_command(app)
    commands = {name: one for name, one in program.commands.items() if not one.hidden}
    unseen = [name for name, one in commands.items() if one.rich_help_panel not in PANELS]
    if unseen:
        raise Undocumented("panel of a command", unseen)
    parts = [WORDS["about"], "## Exit codes", _exit_codes(), WORDS["by_signal"]]
    for panel, told in PANELS.items():
        parts += [f"## {panel}", told]
        for name, command in commands.items():
            if command.rich_help_panel == panel:
                parts += sections(command, f"penstock {name}")
    return page("Command line", *parts, "## Completion", WORDS["completion"])


def _exit_codes() -> str:
    known = WORDS["exit_codes"]
    described("exit code", map(str, (0, FAILED, WRONG_USE, INTERRUPTED)), known)
    return table(["code", ""], ([code(number), told] for number, told in known.items()))


def sections(command: Any, path: str) -> Iterator[str]:
    """Of one command, and of those under it."""
    if not command.help:
        raise Undocumented("command", [path])
    inner = getattr(command, "commands", {})
    yield f"### {path}"
    yield sentence(command.help)
    if not inner or command.invoke_without_command:
        shown = [one for one in command.params if not one.hidden]
        named = [_name(one) for one in shown if one.param_type_name == "argument"]
        yield f"```text\n{' '.join([path, *named, '[OPTIONS]'])}\n```"
        yield table(["", "default", ""], (_row(one, path) for one in shown))
    for name, one in inner.items():
        yield from sections(one, f"{path} {name}")


def _row(one: Any, path: str) -> list[str]:
    if not one.help:
        raise Undocumented("option of a command", [f"{path} {'/'.join(one.opts)}"])
    if one.param_type_name == "argument":
        return [code(_name(one).strip("[]")), "", sentence(one.help)]
    value = "" if one.is_flag else f" {_value(one)}"
    told = sentence(one.help) + _choices(one)
    return [code(", ".join(one.opts) + value), _default(one), told]


def _name(one: Any) -> str:
    name = (one.metavar or one.name).upper()
    return name if one.required else f"[{name}]"


def _value(one: Any) -> str:
    return str(one.metavar or one.opts[0].strip("-").upper())


def _choices(one: Any) -> str:
    annotation = one.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f" One of {codes(choice.value for choice in annotation)}."
    return ""


def _default(one: Any) -> str:
    if one.required:
        return "required"
    value = one.default.value if isinstance(one.default, Enum) else one.default
    return "" if value is None or value is False or value == [] else code(value)
