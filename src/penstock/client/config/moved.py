"""Whether what another app declared has moved here: evidence that this host can see, or none.

Two apps that declare one thing differently are refused. A kind whose module was renamed, or that
went to another module, looks the same to the database; its old file tells the difference.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The calls that declare, and which of their positions is a name.
_NAMES = {"queue": 1, "plan": 1, "job": 0}

Parts = Mapping[str, Any]
"""Where it is declared, as `Place.parts` has it."""


def differs(before: Parts | None, now: Parts) -> bool:
    """Whether it is declared in another line; on another host the same line is no news."""
    kept = before or {}
    return any(kept.get(part) != now.get(part) for part in ("file", "line", "app"))


def moved(before: Parts | None, by: str, now: Parts, now_by: str, name: str) -> bool:
    """Whether app `by` does not declare `name` there any more; False where nobody can tell."""
    if before is None or before.get("host") != now["host"]:
        return False
    if before.get("app") == now["app"]:
        # Run as a script it is `shop`, and imported it is `letters.shop`.
        return by.rpartition(".")[2] == now_by.rpartition(".")[2]
    file = Path(str(before.get("file")))
    # A cell of a notebook is no file; and what two apps share says nothing about either.
    if not file.is_absolute() or str(file) == now["file"]:
        return False
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False
    names_it = re.search(rf"(?<![\w.:-]){re.escape(name)}(?!\w)", text) is not None
    return not names_it and not (file.suffix == ".py" and _computes_names(text))


def _computes_names(text: str) -> bool:
    """Whether code may declare what it does not spell out."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return True
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in _NAMES:
                given = [one.value for one in call.keywords if one.arg in ("name", None)]
                given += call.args[: _NAMES[attr]]
                if not all(isinstance(one, ast.Constant) for one in given):
                    return True
            case _:
                continue
    return False
