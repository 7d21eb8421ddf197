"""Addresses in a text: user, password, query and fragment are taken out, since keys stand there."""

import re

TEXT_MAX = 20_000
"""Characters that are looked at; what follows is left out."""

_TOKEN = re.compile(r"""[^\s"'<>]+""")
_END_OF_HOST = re.compile(r"[/?#\\]")
_END_OF_PATH = re.compile(r"[?#]")
_CLOSING = re.compile(r"[)\]},.;:!]*$")


def without_secrets(text: str) -> str:
    """The text, with each address in it cut to scheme, host and path."""
    if len(text) > TEXT_MAX:
        # Not in the midst of an address: what is before its "@" would not be seen as a password.
        text = text[:TEXT_MAX].rpartition(" ")[0]
    return _TOKEN.sub(_cut, text)


def _cut(found: re.Match[str]) -> str:
    token = found[0]
    scheme, mark, rest = token.partition("://")
    if mark:
        end = _END_OF_HOST.search(rest)
        host, path = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
        return f"{scheme}://{host.rpartition('@')[2]}{_path(path)}"
    # urllib3 quotes the path alone, others leave out the scheme.
    path, _, query = token.partition("?")
    return _path(token) if "/" in path and "=" in query else token


def _path(path: str) -> str:
    end = _END_OF_PATH.search(path)
    if end is None:
        return path
    closing = _CLOSING.search(path)
    return path[: end.start()] + (closing[0] if closing else "")
