"""Programs that a page names, as they have to be here: on free ports, and installing nothing."""

import sys
from pathlib import Path

import playwright

_PENSTOCK = """#!/bin/sh
case " $* " in
*" --port "* | *" --help "*) ;;
*)
  case "$1" in
  dev | serve) set -- "$@" --port {serve} ;;
  model) set -- "$@" --port {model} ;;
  esac ;;
esac
exec '{programs}/penstock' "$@"
"""

# What a page installs is there already: the extras that it names exist, and so do the packages.
_PIP = """#!{python}
import re, sys
from importlib.metadata import metadata

if sys.argv[1:2] != ["install"]:
    sys.exit(f"only `pip install` is known here, not {{sys.argv[1:]}}")
for wanted in sys.argv[2:]:
    if not wanted.startswith("-"):
        name, extras = re.fullmatch(
            r"(?:/\\S+/|\\.\\./)?([\\w.-]+)(?:\\[([\\w,-]+)\\])?", wanted
        ).groups()
        if name == "penstock" and "/" not in wanted:
            sys.exit("penstock of the package index is another project: ../penstock")
        there = metadata(name).get_all("Provides-Extra") or []
        missing = set(extras.split(",") if extras else ()) - set(there)
        if missing:
            sys.exit(f"{{name}} has no extra {{', '.join(missing)}}")
"""

_NODE = """#!/bin/sh
exec '{node}' "$@"
"""


def node() -> Path:
    """Playwright brings one, so nothing has to be installed."""
    return Path(playwright.__file__).parent / "driver" / "node"


def write_shims(folder: Path, ports: dict[str, str]) -> Path:
    """A folder for the front of PATH."""
    programs = Path(sys.executable).parent
    texts = {
        "penstock": _PENSTOCK.format(serve=ports["8484"], model=ports["11434"], programs=programs),
        "pip": _PIP.format(python=sys.executable),
        "node": _NODE.format(node=node()),
    }
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder
