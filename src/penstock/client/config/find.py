"""Find the app that a command names: `module:app`, or a `penstock.toml`."""

import importlib
import inspect
import re
import sys
import traceback
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.base.suggestions import did_you_mean
from penstock.client.app import Penstock
from penstock.errors import Misconfigured, PenstockError, WrongApp, words_of

TOML = "penstock.toml"
_PENSTOCK = Path(__file__).parents[2]
_LONGEST_WORDS = 500
# Python's message for an unknown option: it names neither the known options nor similar ones.
_UNKNOWN_OPTION = re.compile(r"Penstock\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_WHAT_TO_GIVE = f"give module:app, like `marking:app`, or the path of a {TOML}"


def find_app(given: str | None = None) -> Penstock:
    """Return the app that `given` names, searched from the working folder.

    Without a name, the app of the working folder's `penstock.toml`.
    """
    folder = Path.cwd()
    if given is None:
        if not (folder / TOML).exists():
            raise WrongApp(
                f"No app was given, and there is no {TOML} in {folder}: {_WHAT_TO_GIVE}."
            )
        given = TOML
    if given.endswith(".toml"):
        # Imported here, since `toml` imports this module.
        from penstock.client.config.toml import load

        return load(folder / given)
    module, _, attribute = given.partition(":")
    if not module or not attribute or "/" in module or module.endswith(".py"):
        guess = Path(module).stem if module else ""
        hint = f" Did you mean `{guess}:{attribute or 'app'}`?" if guess.isidentifier() else ""
        raise WrongApp(f"{given!r} names no app: {_WHAT_TO_GIVE}.{hint}")
    app = find_object(module, attribute, folder)
    if not isinstance(app, Penstock):
        raise WrongApp(f"{given} is a {type(app).__name__} and not a Penstock.{_meant(module)}")
    return app


def find_object(module: str, attribute: str, folder: Path) -> Any:
    """Return what `module:attribute` names; `folder` is searched for the module first."""
    loaded = load_module(module, folder)
    try:
        return attrgetter(attribute)(loaded)
    except AttributeError:
        raise WrongApp(f"Module {module} has no `{attribute}`.{_meant(module)}") from None


def load_module(name: str, folder: Path) -> Any:
    """Import one of the user's modules; an error in it is raised with file and line."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _explained(name, error, folder) from error


def _explained(name: str, error: BaseException, folder: Path) -> Misconfigured:
    where = _where(error.__traceback__, folder)
    cannot = f"Module {name} cannot be loaded:"
    match error:
        case SystemExit():
            message = (
                f"Module {name} ended the program while it was loaded, at {where}: put code that "
                "runs under `if __name__ == '__main__':`."
            )
        case PenstockError():
            message = f"{where}: {words_of(error)}"
        case SyntaxError():
            where = f"{_short(error.filename or name, folder)}:{error.lineno}"
            message = f"{cannot} {type(error).__name__}: {error.msg} ({where})."
        case ModuleNotFoundError(name=str() as missing):
            if name == missing or name.startswith(f"{missing}."):
                return WrongApp(
                    f"There is no module {missing} in {folder} or among the installed packages."
                )
            message = f"{cannot} it needs {missing}, which is not installed ({where})."
        case TypeError() if unknown := _UNKNOWN_OPTION.fullmatch(words_of(error)):
            message = f"{where}: {_unknown_option(*unknown.groups())}"
        case _:
            message = f"{cannot} {_words(error)} ({where})."
    return Misconfigured(message)


def _unknown_option(method: str, option: str) -> str:
    known = _options(method)
    called = "Penstock" if method == "__init__" else f"app.{method}"
    elsewhere = [other for other in ("queue", "job", "plan") if option in _options(other)]
    hint = f" It is one of app.{elsewhere[0]}(...)." if elsewhere else did_you_mean(option, known)
    return f"{called}(...) has no option {option}.{hint} Known are {', '.join(known)}"


def _options(method: str) -> list[str]:
    return list(inspect.signature(getattr(Penstock, method)).parameters)[1:]


def _words(error: BaseException) -> str:
    """Return the exception on one line. It can be shown: it is raised before there is a payload."""
    words = " ".join(words_of(error).split())
    words = words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _where(trace: TracebackType | None, folder: Path) -> str:
    """Return the last line of the user's own code, not of a library that it called."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if not frame.f_code.co_filename.startswith("<frozen")
        and not Path(frame.f_code.co_filename).is_relative_to(_PENSTOCK)
    ]
    own = [
        (file, line)
        for file, line in frames
        # A virtual environment is often inside the folder.
        if Path(file).is_relative_to(folder) and "site-packages" not in file
    ]
    file, line = (own or frames or [("an unknown file", 0)])[-1]
    return f"{_short(file, folder)}:{line}"


def _short(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _meant(module: str) -> str:
    apps = [
        f"`{module}:{name}`"
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, Penstock)
    ]
    if apps:
        return f" Did you mean {' or '.join(apps)}?"
    return f" Create one there: `app = Penstock()`, and give `{module}:app`."
