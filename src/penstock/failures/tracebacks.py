"""What a traceback tells that an exception does not: who was calling, and which address."""

import sys
from collections.abc import Iterator
from types import FrameType

from penstock.base.safe_read import read

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
    found = ""
    for module, _ in frames(error):
        if module.partition(".")[0] not in sys.stdlib_module_names:
            found = module
    return found


def called_url(error: BaseException) -> object:
    """The address that was called, where a library does not put it into its exception."""
    for module, frame in frames(error):
        holder = _HOLDERS.get((module, frame.f_code.co_name))
        if holder is not None:
            name, attribute = holder
            found = frame.f_locals.get(name)
            return found if attribute is None else read(found, attribute)
    return None
