"""A value that is used and never shown: not in a repr, a log line, an error or a traceback."""

from typing import NoReturn
from weakref import WeakValueDictionary

# What is shorter is a word that a text may hold for another reason.
LEAST_CHARACTERS = 8


class Secret:
    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: str) -> None:
        self._value = value
        _all[id(self)] = self

    def reveal(self) -> str:
        """The value, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        # Whatever copies it to a file or another process would show it there.
        raise TypeError("a secret is not pickled: read it from the environment again")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


_all: WeakValueDictionary[int, Secret] = WeakValueDictionary()


def known() -> list[str]:
    """The values of all secrets in use, longest first, to be taken out of texts.

    Of "Bearer …" and "Basic …" also what follows alone.
    """
    values = {
        secret.reveal() for secret in [ref() for ref in _all.valuerefs()] if secret is not None
    }
    values |= {value.partition(" ")[2] for value in values}
    return sorted(
        (value for value in values if len(value) >= LEAST_CHARACTERS), key=len, reverse=True
    )
