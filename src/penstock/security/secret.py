"""A value that is never shown: not in a repr, a log line, an error or a traceback."""

from typing import NoReturn
from weakref import WeakValueDictionary

# A shorter value may be a usual word in a text.
LEAST_CHARACTERS = 8


class Secret:
    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: str) -> None:
        self._value = value
        _all[id(self)] = self

    def reveal(self) -> str:
        """Return the value, for the code that sends it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        # A copy in a file or another process would show the value.
        raise TypeError("a secret cannot be pickled: read it from the environment again")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


_all: WeakValueDictionary[int, Secret] = WeakValueDictionary()


def known() -> list[str]:
    """Return the values of all secrets in use, longest first, to be removed from texts.

    For "Bearer …" and "Basic …" also the value without the scheme.
    """
    values = {
        secret.reveal() for secret in [ref() for ref in _all.valuerefs()] if secret is not None
    }
    values |= {value.partition(" ")[2] for value in values}
    return sorted(
        (value for value in values if len(value) >= LEAST_CHARACTERS), key=len, reverse=True
    )
