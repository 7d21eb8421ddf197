"""Whether an exception is a database's: a handler's store is not its model, and closes no queue."""

import sys

from penstock.providers.libraries import STORE_MODULES, STORES
from penstock.providers.reading import module_of, read

_FRAMES_MAX = 200


def of_a_store(error: BaseException) -> bool:
    """By its class, or one of its bases."""
    return any(_is_store(module_of(base)) for base in type(error).__mro__)


def _is_store(module: str) -> bool:
    return module.partition(".")[0] in STORES or module.startswith(STORE_MODULES)


def raised_in_a_store(error: BaseException) -> bool:
    """Drivers let a refused connection through as it is; who was calling is in the traceback."""
    trace = read(error, "__traceback__")
    caller = ""
    for _ in range(_FRAMES_MAX):
        if trace is None:
            break
        module = trace.tb_frame.f_globals.get("__name__")
        if isinstance(module, str) and module.partition(".")[0] not in sys.stdlib_module_names:
            caller = module
        trace = trace.tb_next
    return _is_store(caller)
