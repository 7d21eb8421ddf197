"""Finding the app that a command was given: `module:app`, or a `penstock.toml`."""

import importlib
import inspect
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.base.suggestions import did_you_mean
from penstock.client.app import Penstock
from penstock.errors import Misconfigured, PenstockError, WrongApp, words_of

TOML = "penstock.toml"
_PENSTOCK = Path(__file__).parents[2]
_LONGEST_WORDS = 500
# What Python says of it, and which neither names what is allowed nor what is near.
_UNKNOWN_OPTION = re.compile(r"Penstock\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_WHAT_TO_GIVE = f"give module:app, like `marking:app`, or the path of a {TOML}"


def find_app(given: str | None = None) -> Penstock:
    """The app that `given` names, looked for from the working folder.

    Without a name, that of the `penstock.toml` of the working folder.
    """
    folder = Path.cwd()
    if given is None:
        if not (folder / TOML).exists():
            raise WrongApp(
                f"No app was given, and there is no {TOML} in {folder}: {_WHAT_TO_GIVE}."
            )
        given = TOML
    if given.endswith(".toml"):
        # Here, since it finds handlers with what is below.
        from penstock.client.config.toml import load

        return load(folder / given)
    module, _, attribute = given.partition(":")
    if not module or not attribute or "/" in module or module.endswith(".py"):
        guess = Path(module).stem if module else ""
        hint = f" Did you mean `{guess}:{attribute or 'app'}`?" if guess.isidentifier() else ""
        raise WrongApp(f"{given!r} names no app: {_WHAT_TO_GIVE}.{hint}")
    found = find_object(module, attribute, folder)
    if not isinstance(found, Penstock):
        raise WrongApp(f"{given} is a {type(found).__name__} and not a Penstock.{_meant(module)}")
    return found


def find_object(module: str, attribute: str, folder: Path) -> Any:
    """What `module:attribute` names, the module being found from `folder` first."""
    found: Any = load_module(module, folder)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise WrongApp(f"Module {module} has no `{attribute}`.{_meant(module)}")
        found = getattr(found, name)
    return found


def load_module(name: str, folder: Path) -> Any:
    """Import a module of the user's; what goes wrong in it is told with file and line."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        raise Misconfigured(
            f"Module {name} ended the program while it was loaded, at "
            f"{_where(error.__traceback__, folder)}: put what runs under "
            "`if __name__ == '__main__':`."
        ) from None
    except PenstockError as error:
        raise Misconfigured(f"{_where(error.__traceback__, folder)}: {words_of(error)}") from error
    except SyntaxError as error:
        file = _short(error.filename or name, folder)
        raise Misconfigured(
            f"Module {name} cannot be loaded: {type(error).__name__}: {error.msg} "
            f"({file}:{error.lineno})."
        ) from error
    except Exception as error:
        raise _explained(name, error, folder) from error


def _explained(name: str, error: Exception, folder: Path) -> Misconfigured:
    where = _where(error.__traceback__, folder)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        if name == error.name or name.startswith(f"{error.name}."):
            return WrongApp(
                f"There is no module {error.name} in {folder} or among the installed packages."
            )
        return Misconfigured(
            f"Module {name} cannot be loaded: it needs {error.name}, which is not installed "
            f"({where})."
        )
    if isinstance(error, TypeError) and (match := _UNKNOWN_OPTION.fullmatch(words_of(error))):
        return Misconfigured(f"{where}: {_unknown_option(*match.groups())}")
    return Misconfigured(f"Module {name} cannot be loaded: {_words(error)} ({where}).")


def _unknown_option(method: str, option: str) -> str:
    known = _options(method)
    called = "Penstock" if method == "__init__" else f"app.{method}"
    elsewhere = [other for other in ("queue", "job", "plan") if option in _options(other)]
    hint = f" It is one of app.{elsewhere[0]}(...)." if elsewhere else did_you_mean(option, known)
    return f"{called}(...) has no option {option}.{hint} Known are {', '.join(known)}"


def _options(method: str) -> list[str]:
    return list(inspect.signature(getattr(Penstock, method)).parameters)[1:]


def _words(error: Exception) -> str:
    """The exception on one line. It is the app's own, of a time when there is no payload yet."""
    said = " ".join(words_of(error).split())
    said = said if len(said) <= _LONGEST_WORDS else f"{said[:_LONGEST_WORDS]}…"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _where(trace: TracebackType | None, folder: Path) -> str:
    """The user's own line that was running, not the library's below it."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if not frame.f_code.co_filename.startswith("<frozen")
        and not Path(frame.f_code.co_filename).is_relative_to(_PENSTOCK)
    ]
    own = [
        (file, line)
        for file, line in frames
        # A virtual environment is often below the folder.
        if Path(file).is_relative_to(folder) and "site-packages" not in file
    ]
    file, line = (own or frames or [("an unknown place", 0)])[-1]
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
    return f" Make one there: `app = Penstock()`, and give `{module}:app`."
