"""How to ask an exception anything at all: each question has an answer, and none of them raises."""

from typing import Any


def is_a(error: object, *kinds: type[BaseException]) -> bool:
    """`isinstance`, without asking the object what it says it is."""
    return issubclass(type(error), kinds)


def module_of(kind: type) -> str:
    module = read(kind, "__module__")
    return module if isinstance(module, str) else ""


def read(holder: object, name: str) -> Any:
    """An attribute of something that may be anything; None when it has none, or raises."""
    try:
        return getattr(holder, name, None)
    except BaseException:  # noqa: BLE001  # httpx's `.request` raises when there is none
        return None


def roots(error: BaseException) -> set[str]:
    """The packages that the exception's class and its bases are from."""
    return {module_of(base).partition(".")[0] for base in type(error).__mro__}
