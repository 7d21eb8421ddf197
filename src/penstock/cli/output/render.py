"""Text for people: tables that fit the terminal, states in colour.

If output is not a terminal (a pipe, a file), there are no colours and nothing is cut off.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

STYLES = {
    "scheduled": "blue",
    "queued": "cyan",
    "running": "yellow",
    "awaiting": "magenta",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
    "ok": "green",
    "warning": "yellow",
    "bad": "bold red",
}
NOTHING = "-"
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. On a narrow terminal, some columns are cut or left out.

    value   the key of its value in a row, or a function of the row
    least   the column may be cut to this many characters
    drop    the column may be left out; the highest number is left out first
    """

    title: str
    value: str | Callable[[Any], Any]
    right: bool = False
    least: int | None = None
    drop: int = 0


def stdout() -> Console:
    """Return a console on standard output; not kept, since `sys.stdout` may be replaced."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, color_system=None, force_terminal=False, soft_wrap=True)


def terminal_width() -> int | None:
    """Return how wide a line may be; None if output is not a terminal."""
    return stdout().width if sys.stdout.isatty() else None


def clean(value: Any) -> str:
    """Return the text without control characters, which could move the cursor or break lines."""
    if value is None or value == "":
        return NOTHING
    return "".join(char if char.isprintable() else " " for char in str(value))


def table(
    columns: Sequence[Column], rows: Iterable[Any], *, none: str = "", width: int | None
) -> list[Text]:
    """Return titles and rows as lines, or `none` without rows; without `width`, nothing is cut."""
    cells = [[clean(_value(column, row)) for column in columns] for row in rows]
    if not cells and none:
        return [Text(none, end="")]
    sizes = [
        max(cell_len(text) for text in (column.title, *(row[n] for row in cells)))
        for n, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    if width is not None:
        shown = [n for n in shown if not columns[n].drop or any(row[n] != NOTHING for row in cells)]
        shown, sizes = _fitted(columns, sizes, shown, width)
    lines = [_line([columns[n].title for n in shown], columns, sizes, shown, "bold")]
    lines += [_line([row[n] for n in shown], columns, sizes, shown) for row in cells]
    return lines


def listing(columns: Sequence[Column], none: str) -> Callable[[Iterable[Any]], list[Text]]:
    """Return a function that formats rows as a table for the terminal; without rows as `none`."""
    return lambda rows: table(columns, rows, none=none, width=terminal_width())


def _value(column: Column, row: Any) -> Any:
    return row[column.value] if isinstance(column.value, str) else column.value(row)


def _fitted(
    columns: Sequence[Column], sizes: list[int], shown: list[int], width: int
) -> tuple[list[int], list[int]]:
    """Leave out columns and cut others until the table fits."""

    def excess() -> int:
        return sum(sizes[n] for n in shown) + len(_GAP) * (len(shown) - 1) - width

    def slack() -> int:
        return sum(max(0, sizes[n] - least) for n in shown if (least := columns[n].least))

    while excess() > slack() and any(columns[n].drop for n in shown):
        shown.remove(max(shown, key=lambda n: columns[n].drop))
    for n in reversed(shown):
        least = columns[n].least
        if least is not None and sizes[n] > least and excess() > 0:
            sizes[n] = max(least, sizes[n] - excess())
    return shown, sizes


def _line(
    texts: Sequence[str],
    columns: Sequence[Column],
    sizes: Sequence[int],
    shown: Sequence[int],
    style: str = "",
) -> Text:
    line = Text(no_wrap=True, overflow="ignore", end="")
    for text, n in zip(texts, shown, strict=True):
        size = sizes[n]
        cut = text if cell_len(text) <= size else set_cell_size(text, size - 1) + "…"
        space = " " * (size - cell_len(cut))
        last = n == shown[-1]
        line.append(_GAP if n != shown[0] else "")
        padded = space + cut if columns[n].right else cut + ("" if last else space)
        line.append(padded, style or STYLES.get(text, "dim" if text == NOTHING else ""))
    line.rstrip()
    return line


def print_lines(lines: Iterable[Text]) -> None:
    """Print lines to standard output, in its width and colours."""
    console = stdout()
    for line in lines:
        console.print(line, soft_wrap=True, end="\n")


def facts(pairs: Iterable[tuple[str, Any]]) -> list[Text]:
    """Return lines of names and values about one thing."""
    return [
        Text.assemble(
            (f"{name:<12}", "bold"),
            (clean(value), STYLES[value] if name == "status" else ""),
            end="",
        )
        for name, value in pairs
    ]
