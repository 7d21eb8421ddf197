"""The types of fixtures that are functions, for the annotations of tests."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import asyncpg

T = TypeVar("T")

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Scale(Protocol):
    def __call__(self, short: T, full: T) -> T: ...


@dataclass
class Done:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


class Penstock(Protocol):
    def __call__(self, *words: str) -> Done: ...
