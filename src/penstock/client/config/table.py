"""One table of a `penstock.toml`: it reads its options and names mistakes in them."""

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.base.suggestions import did_you_mean
from penstock.errors import PenstockError, Refused, WrongApp
from penstock.security.secret import Secret

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the file."""

    path: Path
    name: str
    options: Mapping[str, Any]
    environ: Mapping[str, str] = field(repr=False)

    def wrong(self, key: str, mistake: str) -> WrongApp:
        table = f", [{self.name}]" if self.name else ""
        named = f", {key}" if key else ""
        return WrongApp(f"{self.path}{table}{named}: {mistake}")

    @contextmanager
    def naming(self, prefix: str = "") -> Iterator[None]:
        """Put file, table and, if known, key before the message of an error."""
        try:
            yield
        except Refused as error:
            raise self.wrong(f"{prefix}{error.field or ''}", str(error)) from error
        except PenstockError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise self.wrong("", str(error)) from error

    def checked(self, takes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options, with variables replaced; refuse those that `takes` does not have.

        `takes`: the known options, with their types.
        """
        for key in self.options:
            if key not in takes:
                near = did_you_mean(key, takes)
                raise self.wrong(key, f"is not an option.{near} Known are {', '.join(takes)}")
        return {key: self.expanded(key, value, takes[key]) for key, value in self.options.items()}

    def secret(self, key: str, value: Any) -> Secret:
        """Return a secret, which only a variable of the environment may hold; never quote it."""
        if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
            raise self.wrong(
                key,
                "must name a variable of the environment, like $NAME: a secret in this file is "
                "read by everyone who reads the file",
            )
        secret = self.expanded(key, value, str)
        if not secret.isprintable() or not secret.isascii():
            raise self.wrong(
                key, f"{value} has characters that cannot be sent: a line break, perhaps"
            )
        return Secret(secret)

    def beside(self, key: str, name: Any) -> str:
        """Return the text of a file in the folder of this one."""
        if not isinstance(name, str) or not name:
            raise self.wrong(key, "must be the name of a file beside this one")
        path = self.path.parent / name
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise self.wrong(key, f"{path} cannot be read: {type(error).__name__}") from None

    def expanded(self, key: str, value: Any, wanted: Any) -> Any:
        """Replace `"$NAME"` by that variable, converted to the option's type; `$$` is one `$`."""
        types = typing.get_args(wanted) or (wanted,)
        if Secret in types:
            return self.secret(key, value)
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        if value.startswith("$$"):
            return value[1:]
        variable = _VARIABLE.fullmatch(value)
        if variable is None:
            raise self.wrong(key, f"{value!r} names no variable of the environment, like $NAME")
        text = self.environ.get(variable[1])
        if not text:
            raise self.wrong(key, f"{value} is not set in the environment: export {value[1:]}=...")
        if int in types and re.fullmatch(r"-?[0-9]{1,9}", text):
            return int(text)
        return _TRUTH.get(text.lower(), text) if bool in types and str not in types else text


def taken(function: Callable[..., Any], *without: str) -> dict[str, Any]:
    """Return the options that a function takes, with their types."""
    parameters = inspect.signature(function).parameters
    left_out = ("self", "name", *without)
    return {key: each.annotation for key, each in parameters.items() if key not in left_out}
