"""One option, as every surface reads it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.engine.options.forms import Form, Other


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is not given has the default of the SQL core; no default is written here as a value."""

    name: str
    """As an argument in Python, and as a key in `penstock.toml`."""
    form: Form
    help: str
    """What it does, in one sentence."""
    more: str = ""
    """Further sentences, for the reference only."""
    default: str = ""
    """Its default in words, where the reference cannot read a value from the database."""
    stored: str = ""
    """Its name in SQL and JSON, if that is not the name and the unit."""
    label: str = ""
    """Its name on a page. An option with a label can be changed at run time: on the dashboard, over
    HTTP and on the command line."""
    command: bool = False
    """Whether `penstock submit` takes it."""
    unlimited: int | str | None = None
    """The value that stands for no limit: a declared limit can be raised, and not removed."""
    inner: tuple["Option", ...] = ()
    """Options that Python and TOML keep in a table of their own, and SQL and JSON do not."""

    @property
    def key(self) -> str:
        """Its name in SQL and JSON."""
        return self.stored or f"{self.name}{self.form.suffix}"


def flat(options: Iterable[Option]) -> Iterator[Option]:
    """As SQL and JSON have them: without tables inside."""
    for option in options:
        yield from option.inner or (option,)


def editable(options: Iterable[Option]) -> tuple[Option, ...]:
    """Those that can be changed at run time."""
    return tuple(option for option in flat(options) if option.label)


def read(options: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values by key, as SQL takes them; the rest is left to the defaults, as is None."""
    values = (
        (option.key, option.form.read(given[option.name], option.name))
        for option in options
        if not isinstance(option.form, Other)
    )
    return {key: value for key, value in values if value is not None}
