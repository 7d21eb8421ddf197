"""One option, for every surface."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.engine.options.forms import Form, Other


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option. If it is not given, the SQL core has the default; no default value is here."""

    name: str
    """The argument in Python, and the key in `penstock.toml`."""
    form: Form
    help: str
    """What it does, in one sentence."""
    more: str = ""
    """Further sentences, for the reference only."""
    default: str = ""
    """Its default in words, if the reference cannot read a value from the database."""
    stored: str = ""
    """Its name in SQL and JSON, if that is not the name with the unit."""
    label: str = ""
    """Its name on a page. An option with a label can be changed at run time: on the dashboard, over
    HTTP and on the command line."""
    command: bool = False
    """Whether `penstock submit` takes it."""
    unlimited: int | str | None = None
    """The value that means no limit: a declared limit can be raised, but not removed."""
    inner: tuple["Option", ...] = ()
    """The options of a table in Python and TOML; in SQL and JSON there is no such table."""

    @property
    def key(self) -> str:
        """Its name in SQL and JSON."""
        return self.stored or f"{self.name}{self.form.suffix}"


def flat(options: Iterable[Option]) -> Iterator[Option]:
    """The options as SQL and JSON have them: without tables inside."""
    for option in options:
        yield from option.inner or (option,)


def editable(options: Iterable[Option]) -> tuple[Option, ...]:
    """The options that can be changed at run time."""
    return tuple(option for option in flat(options) if option.label)


def read(options: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values by key, as SQL takes them; options that are None have their defaults."""
    values = (
        (option.key, option.form.read(given[option.name], option.name))
        for option in options
        if not isinstance(option.form, Other)
    )
    return {key: value for key, value in values if value is not None}
