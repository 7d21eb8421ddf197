"""Whose failure it is: the provider's, or that of something else that a handler used.

Only libraries that call models, or speak HTTP, are believed: an exception of the app's own may have
a status, too, and mean something else by it. What is not the provider's costs an attempt, and the
queue does not hear of it. An author who knows better says so: `error_class`, or an extension.
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
# Where these libraries keep the address while they call; their exceptions leave its path out.
_HOLDERS = {
    ("aiohttp.client", "_request"): ("str_or_url", None),
    ("urllib.request", "do_open"): ("req", "full_url"),
    ("urllib3.poolmanager", "urlopen"): ("url", None),
}


def frames(error: BaseException) -> Iterator[tuple[str, FrameType]]:
    """The frames it passed, with their modules, from the outermost to where it was raised."""
    trace = read(error, "__traceback__")
    for _ in range(_FRAMES_MAX):
        if trace is None:
            return
        module = trace.tb_frame.f_globals.get("__name__")
        if isinstance(module, str):
            yield module, trace.tb_frame
        trace = trace.tb_next


def caller(error: BaseException) -> str:
    """The last module that is not Python's own: who was calling when Python raised it."""
    last = ""
    for module, _ in frames(error):
        if module.partition(".")[0] not in sys.stdlib_module_names:
            last = module
    return last


def called_url(error: BaseException) -> object:
    """The address that was called, where a library does not put it into its exception."""
    for module, frame in frames(error):
        holder = _HOLDERS.get((module, frame.f_code.co_name))
        if holder is not None:
            name, attribute = holder
            value = frame.f_locals.get(name)
            return value if attribute is None else read(value, attribute)
    return None


Client = Literal["model", "http", "shared"]
"""`shared`: a library of models and of much else, whose exceptions tell no address."""


def client_of(error: BaseException) -> Client | None:
    """What kind of library the exception's class, or one of its bases, is from."""
    if is_a(error, ProviderError):
        return "model"
    modules = [module_of(base) for base in type(error).__mro__]
    if any(module.startswith("aiohttp.web") for module in modules):
        return None  # with these an app says how *it* answers
    if any(_in(module, MODEL_CLIENTS) for module in modules):
        return "model"
    if any(_in(module, SHARED_CLIENTS) for module in modules):
        through = any(_in(module, MODEL_CLIENTS) for module, _ in frames(error))
        return "model" if through else "shared"
    return "http" if any(_in(module, HTTP_CLIENTS) for module in modules) else None


def raised_by(error: BaseException) -> Client | None:
    """The same for one of Python's own: Ollama's client raises a plain ConnectionError."""
    module = caller(error)
    if _in(module, MODEL_CLIENTS):
        return "model"
    return "http" if _in(module, HTTP_CLIENTS) else None


def is_elsewhere(errors: Sequence[BaseException], *, answered: bool) -> bool:
    """Whether this, with what it is wrapped in, is not the provider's: unknown counts as its."""
    clients = [client_of(error) or raised_by(error) for error in errors]
    if "model" in clients:
        return False
    for error in errors:
        is_model = of_a_model(url_of(error), answered=answered)
        if is_model is not None:
            return not is_model
    return "http" not in clients


def url_of(error: BaseException) -> object:
    """Of httpx, the SDKs and requests; of aiohttp; of urllib; of urllib3, which has it in parts."""
    for holder in (read(error, "request"), read(read(error, "response"), "request")):
        url = read(holder, "url")
        if url is not None:
            return url
    pool = read(error, "pool")
    host, port, path = read(pool, "host"), read(pool, "port"), read(error, "url")
    if isinstance(host, str) and isinstance(path, str):
        place = host if port is None else f"{host}:{port}"
        return f"{read(pool, 'scheme')}://{place}{path}"
    for holder in (read(error, "request_info"), error):
        url = read(holder, "url")
        if url is not None:
            return url
    return called_url(error)


def _in(module: str, packages: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def of_a_store(error: BaseException) -> bool:
    """By its class, or one of its bases."""
    return any(_is_store(module_of(base)) for base in type(error).__mro__)


def _is_store(module: str) -> bool:
    return module.partition(".")[0] in STORES or module.startswith(STORE_MODULES)


def raised_in_a_store(error: BaseException) -> bool:
    """Drivers let a refused connection through as it is; who was calling is in the traceback."""
    return _is_store(caller(error))
