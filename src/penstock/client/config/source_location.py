"""Where in the app's code something was declared, for messages about conflicts."""

import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OURS = re.compile(r"penstock\.client(\.|$)")


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a module."""

    module: str
    file: str
    line: int | None
    """None for a whole file."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def again(self, other: "SourceLocation") -> bool:
        """Whether the same line runs again, as in a notebook's cell or a reloaded module.

        An edited cell is another file of the same module, `__main__`.
        """
        return self.module == other.module and (self.file != other.file or self.line == other.line)

    @property
    def app(self) -> str:
        """The module's name, also if it runs as a script or by `python -m`."""
        if self.module != "__main__":
            return self.module
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)  # by `python -m`
        name = Path(self.file).stem if spec is None else str(spec.name)
        return name.removesuffix(".__main__")

    def parts(self, app: "SourceLocation") -> dict[str, str | int]:
        """Return the form that the database keeps, with the file of the app itself."""
        line = {} if self.line is None else {"line": self.line}
        return {"file": self.file, **line, "host": socket.gethostname(), "app": app.file}


def of_caller() -> SourceLocation:
    """Return the line outside of this package that called it."""
    frame = sys._getframe(1)  # noqa: SLF001  # documented, and takes a hundredth of the time of inspect.stack()
    while frame.f_back is not None and _OURS.match(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return SourceLocation(
        frame.f_globals.get("__name__", "?"), frame.f_code.co_filename, frame.f_lineno
    )


def of_function(function: Callable[..., Any]) -> SourceLocation:
    code = function.__code__
    return SourceLocation(function.__module__, code.co_filename, code.co_firstlineno)
