"""A value that is used and never shown: not in a repr, a log line, an error or a traceback."""

from typing import NoReturn


class Secret:
    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

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
