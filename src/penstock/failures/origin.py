"""The origin of a failure: the provider, or another service that a handler used.

Only exceptions of libraries that call models or speak HTTP are considered: an app's own exception
may have a `status`, too, with another meaning. A failure of another service counts against
`max_attempts`, and does not affect the queue's circuit. An author can override this with
`error_class` or an extension.
"""

import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Literal

from penstock.base.safe_access import is_a, module_of, read
from penstock.failures.sdk_names import (
    HTTP_CLIENTS,
    MODEL_CLIENTS,
    SHARED_CLIENTS,
    STORE_MODULES,
    STORES,
)
from penstock.net.model_addresses import of_a_model
from penstock.net.provider_errors import ProviderError

_FRAMES_MAX = 200
# The local variables that hold the address during a call: the exceptions lack its path.
_HOLDERS = {
    ("aiohttp.client", "_request"): ("str_or_url", None),
    ("urllib.request", "do_open"): ("req", "full_url"),
    ("urllib3.poolmanager", "urlopen"): ("url", None),
}


def frames(error: BaseException) -> Iterator[tuple[str, FrameType]]:
    """Yield the frames of the traceback with their modules, from the outermost to the innermost."""
    trace = read(error, "__traceback__")
    for _ in range(_FRAMES_MAX):
        if trace is None:
            return
        module = trace.tb_frame.f_globals.get("__name__")
        if isinstance(module, str):
            yield module, trace.tb_frame
        trace = trace.tb_next


def caller(error: BaseException) -> str:
    """Return the last module outside of the standard library: the caller when Python raised it."""
    last = ""
    for module, _ in frames(error):
        if module.partition(".")[0] not in sys.stdlib_module_names:
            last = module
    return last


def called_url(error: BaseException) -> object:
    """Return the called address for libraries that do not put it into their exceptions."""
    for module, frame in frames(error):
        holder = _HOLDERS.get((module, frame.f_code.co_name))
        if holder is not None:
            name, attribute = holder
            value = frame.f_locals.get(name)
            return value if attribute is None else read(value, attribute)
    return None


Client = Literal["model", "http", "shared"]
"""`shared`: a library for models and other services, whose exceptions have no address."""


def client_of(error: BaseException) -> Client | None:
    """Return the kind of library that the exception's class, or one of its bases, is from."""
    if is_a(error, ProviderError):
        return "model"
    modules = [module_of(base) for base in type(error).__mro__]
    if any(module.startswith("aiohttp.web") for module in modules):
        return None  # an app raises these to answer its own clients
    if any(_in(module, MODEL_CLIENTS) for module in modules):
        return "model"
    if any(_in(module, SHARED_CLIENTS) for module in modules):
        through = any(_in(module, MODEL_CLIENTS) for module, _ in frames(error))
        return "model" if through else "shared"
    return "http" if any(_in(module, HTTP_CLIENTS) for module in modules) else None


def raised_by(error: BaseException) -> Client | None:
    """The same for Python's own exceptions: Ollama's client raises a plain ConnectionError."""
    module = caller(error)
    if _in(module, MODEL_CLIENTS):
        return "model"
    return "http" if _in(module, HTTP_CLIENTS) else None


def is_elsewhere(errors: Sequence[BaseException], *, answered: bool) -> bool:
    """Whether the failure, by all its wrappers, is not the provider's; unknown: it is."""
    clients = [client_of(error) or raised_by(error) for error in errors]
    if "model" in clients:
        return False
    for error in errors:
        is_model = of_a_model(url_of(error), answered=answered)
        if is_model is not None:
            return not is_model
    return "http" not in clients


def url_of(error: BaseException) -> object:
    """Read the URL of httpx, the SDKs and requests; of urllib3, in parts; of aiohttp; of urllib."""
    for holder in (read(error, "request"), read(read(error, "response"), "request")):
        url = read(holder, "url")
        if url is not None:
            return url
    pool = read(error, "pool")
    host, port, path = read(pool, "host"), read(pool, "port"), read(error, "url")
    if isinstance(host, str) and isinstance(path, str):
        authority = host if port is None else f"{host}:{port}"
        return f"{read(pool, 'scheme')}://{authority}{path}"
    for holder in (read(error, "request_info"), error):
        url = read(holder, "url")
        if url is not None:
            return url
    return called_url(error)


def _in(module: str, packages: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def of_a_store(error: BaseException) -> bool:
    """Whether the exception's class, or one of its bases, is of a store's driver."""
    return any(_is_store(module_of(base)) for base in type(error).__mro__)


def _is_store(module: str) -> bool:
    return module.partition(".")[0] in STORES or module.startswith(STORE_MODULES)


def raised_in_a_store(error: BaseException) -> bool:
    """Whether a driver was calling: it passes on a refused connection as Python's exception."""
    return _is_store(caller(error))
