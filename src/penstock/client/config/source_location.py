"""Where in the app's code something was declared, for messages that name both of two."""

import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OURS = re.compile(r"penstock\.client(\.|$)")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a module."""

    module: str
    file: str
    line: int | None
    """None for a whole file."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def again(self, other: "Place") -> bool:
        """Whether the same line is run again, as a notebook's cell or a reloaded module is.

        An edited cell is another file of the same module, `__main__`.
        """
        return self.module == other.module and (self.file != other.file or self.line == other.line)

    @property
    def app(self) -> str:
        """The name of the module, however it was started."""
        if self.module != "__main__":
            return self.module
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)  # by `python -m`
        name = Path(self.file).stem if spec is None else str(spec.name)
        return name.removesuffix(".__main__")

    def parts(self, app: "Place") -> dict[str, str | int]:
        """As the database keeps it, with where the app itself is made."""
        line = {} if self.line is None else {"line": self.line}
        return {"file": self.file, **line, "host": socket.gethostname(), "app": app.file}


def of_caller() -> Place:
    """The line outside of this package that called into it."""
    frame = sys._getframe(1)  # noqa: SLF001  # documented, and a hundredth of inspect.stack()
    while frame.f_back is not None and _OURS.match(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return Place(frame.f_globals.get("__name__", "?"), frame.f_code.co_filename, frame.f_lineno)


def of_function(function: Callable[..., Any]) -> Place:
    code = function.__code__
    return Place(function.__module__, code.co_filename, code.co_firstlineno)
