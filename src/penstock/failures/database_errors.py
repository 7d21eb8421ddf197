"""Whether an exception is a database's: a handler's store is not its model, and closes no queue."""

from penstock.base.safe_read import module_of
from penstock.failures.sdk_names import STORE_MODULES, STORES
from penstock.failures.tracebacks import caller


def of_a_store(error: BaseException) -> bool:
    """By its class, or one of its bases."""
    return any(_is_store(module_of(base)) for base in type(error).__mro__)


def _is_store(module: str) -> bool:
    return module.partition(".")[0] in STORES or module.startswith(STORE_MODULES)


def raised_in_a_store(error: BaseException) -> bool:
    """Drivers let a refused connection through as it is; who was calling is in the traceback."""
    return _is_store(caller(error))
