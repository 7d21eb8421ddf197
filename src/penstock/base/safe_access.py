"""Read attributes and types of any exception, without ever raising one."""

from typing import Any


def is_a(error: object, *kinds: type[BaseException]) -> bool:
    """`isinstance` that ignores the object's own `__class__`."""
    return issubclass(type(error), kinds)


def module_of(kind: type) -> str:
    module = read(kind, "__module__")
    return module if isinstance(module, str) else ""


def read(holder: object, name: str) -> Any:
    """Return an attribute of any object; None if it is missing or reading it raises."""
    try:
        return getattr(holder, name, None)
    except BaseException:  # noqa: BLE001  # httpx's `.request` raises if there is none
        return None


def roots(error: BaseException) -> set[str]:
    """Return the top-level packages of the exception's class and its bases."""
    return {module_of(base).partition(".")[0] for base in type(error).__mro__}
