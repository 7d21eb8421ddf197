"""The settings of a process, read once at its start; and the parser of durations.

The environment overrides a `.env` file in the working folder, and the file overrides the defaults.
"""

import ipaddress
import math
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from penstock.base.secret_strength import HOW_TO_MAKE, why_weak
from penstock.errors import Invalid, Misconfigured

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_LONGEST_NAME = 200
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_ACCOUNT_BYTES = 8 * 1024 * 1024
_ACCOUNT_STREAMS = 100
_TOKEN_STREAMS = 20

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)
# A century. More is a typing error, and much more overflows timedelta and interval.
_LONGEST_SECONDS = 36_525 * 86_400
_ALLOWED = 'a number of seconds, or a number with s, m, h or d like "90s", "5m", "2h", "7d"'

_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
# A quoted value, and then at most a comment. Backslashes escape in double quotes only.
_QUOTED = re.compile(r"""(?:'(?P<plain>[^']*)'|"(?P<escaped>(?:[^"\\]|\\.)*)")\s*(?:\#.*)?""")


def default_worker_id() -> str:
    """Host and process id, so that people can find the worker; the database numbers workers."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings from the environment: read once at the start and passed down."""

    dsn: str | None = None  # None: the embedded Postgres under `home`
    home: Path = Path(".penstock")
    log_level: str = "warning"
    log_format: str = "text"
    inline: bool = False  # run jobs in the process that submits them, whatever their queue says
    tracebacks: bool = True  # keep and log the frames of handlers' errors
    worker_id: str = field(default_factory=default_worker_id)  # for people
    secrets: tuple[str, ...] = field(default=(), repr=False)  # the first signs, all are accepted
    public_url: str | None = None  # the address at which functions and browsers reach the API
    allow_private: bool = False  # addresses that callers give may be in private networks
    origins: tuple[str, ...] = ()  # other origins whose pages may call the API
    proxies: tuple[str, ...] = ()  # proxies whose X-Forwarded-* headers `serve` trusts
    account_bytes: int = _ACCOUNT_BYTES  # limit of bodies that one account is sending at once
    account_streams: int = _ACCOUNT_STREAMS  # limit of an account's open live streams
    token_streams: int = _TOKEN_STREAMS  # the same for one browser token

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], cwd: Path) -> "Settings":
        """Read PENSTOCK_* from `environ` and from `cwd`/.env. An empty value counts as not set."""
        merged = {**read_env_file(cwd / ".env"), **environ}
        return cls(
            dsn=merged.get("PENSTOCK_DSN") or None,
            # Made absolute: a relative home must not move when the program changes its folder.
            home=cwd / Path(merged.get("PENSTOCK_HOME") or ".penstock").expanduser(),
            log_level=_choice(merged, "PENSTOCK_LOG_LEVEL", "warning", LOG_LEVELS),
            log_format=_choice(merged, "PENSTOCK_LOG_FORMAT", "text", LOG_FORMATS),
            inline=_flag(merged, "PENSTOCK_INLINE", "0"),
            tracebacks=_flag(merged, "PENSTOCK_TRACEBACKS", "1"),
            worker_id=_worker_id(merged.get("PENSTOCK_WORKER_ID") or default_worker_id()),
            secrets=_secrets(merged.get("PENSTOCK_SECRET") or ""),
            public_url=_public_url(merged.get("PENSTOCK_PUBLIC_URL") or None),
            allow_private=_flag(merged, "PENSTOCK_ALLOW_PRIVATE", "0"),
            origins=_origins(merged.get("PENSTOCK_ORIGINS") or ""),
            proxies=_proxies(merged.get("PENSTOCK_PROXIES") or ""),
            account_bytes=_whole(merged, "PENSTOCK_ACCOUNT_BYTES", 65_536, _ACCOUNT_BYTES),
            account_streams=_whole(merged, "PENSTOCK_ACCOUNT_STREAMS", 1, _ACCOUNT_STREAMS),
            token_streams=_whole(merged, "PENSTOCK_TOKEN_STREAMS", 1, _TOKEN_STREAMS),
        )


def _secrets(written: str) -> tuple[str, ...]:
    """Parse one secret, or during a rotation the new and the old one, separated by a comma."""
    secrets = tuple(each.strip() for each in written.split(",")) if written else ()
    for number, each in enumerate(secrets, start=1):
        which = f"value {number} of PENSTOCK_SECRET" if len(secrets) > 1 else "PENSTOCK_SECRET"
        if not each.isascii() or " " in each:
            raise Misconfigured(
                f"{which} must consist of ASCII characters without spaces; {HOW_TO_MAKE}. To "
                "rotate the secret, set both with a comma between, the new one first"
            )
        weakness = why_weak(each)
        if weakness is not None:
            # Without the value: this message goes into logs.
            raise Misconfigured(
                f"{which} {weakness}; it signs all tokens, callbacks and webhooks, and gives full "
                f"access: {HOW_TO_MAKE}"
            )
    return secrets


def _public_url(written: str | None) -> str | None:
    if written is None:
        return None
    url = urlsplit(written)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise Misconfigured(
            "PENSTOCK_PUBLIC_URL must be an address like https://queue.example.org, with or without"
            " a path"
        )
    return written.rstrip("/")


def _origins(written: str) -> tuple[str, ...]:
    origins = tuple(origin.rstrip("/") for origin in _list(written))
    for origin in origins:
        url = urlsplit(origin)
        if origin != "*" and (url.scheme not in ("http", "https") or not url.netloc or url.path):
            raise Misconfigured(
                f"PENSTOCK_ORIGINS names {origin!r}; origins look like https://app.example.org,"
                " with commas between, or * for all"
            )
    return origins


def _proxies(written: str) -> tuple[str, ...]:
    """Parse addresses and networks. With `*`, each client could choose its own address."""
    networks = []
    for proxy in _list(written):
        with suppress(ValueError):
            network = ipaddress.ip_network(proxy, strict=False)
            if network.prefixlen:
                networks.append(str(network))
                continue
        raise Misconfigured(
            f"PENSTOCK_PROXIES names {proxy!r}; it accepts addresses and networks of your proxies,"
            " like 10.0.0.7 or 10.0.8.0/24, with commas between"
        )
    return tuple(networks)


def _list(written: str) -> list[str]:
    return [each.strip() for each in written.split(",") if each.strip()]


def _whole(merged: Mapping[str, str], name: str, least: int, default: int) -> int:
    written = merged.get(name) or str(default)
    if not re.fullmatch(r"[0-9]{1,10}", written) or int(written) < least:
        raise Misconfigured(f"{name} is {written!r}; it may be a whole number, {least} or more")
    return int(written)


def _worker_id(name: str) -> str:
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise Misconfigured(
            f"PENSTOCK_WORKER_ID must be a name of at most {_LONGEST_NAME} printable characters"
        )
    return name


def _flag(merged: Mapping[str, str], name: str, default: str) -> bool:
    return _choice(merged, name, default, (*_TRUE, *_FALSE)) in _TRUE


def _choice(merged: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = (merged.get(name) or default).lower()
    if value not in allowed:
        raise Misconfigured(f"{name} is {value!r}; it may be {', '.join(allowed)}")
    return value


def read_env_file(path: Path) -> dict[str, str]:
    """Read the `KEY=VALUE` lines of a `.env` file; a missing file is an empty one.

    Comments, blank lines, `export ` and quotes are supported; variables are not expanded.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"cannot read {path}: {error}") from error
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(stripped)
        if match is None:
            # Without the line: it may contain a password.
            raise Misconfigured(f"{path}, line {number}: expected KEY=VALUE")
        name, value = match.groups()
        values[name] = _unquoted(value, path, number)
    return values


def _unquoted(value: str, path: Path, number: int) -> str:
    if not value.startswith(("'", '"')):
        # A comment needs a space before it, because # is common in passwords.
        return re.split(r"\s+#|^#", value, maxsplit=1)[0].rstrip()
    quoted = _QUOTED.fullmatch(value)
    if quoted is None:
        raise Misconfigured(f"{path}, line {number}: a quote is not closed, or text follows it")
    if quoted["plain"] is not None:
        return quoted["plain"]
    escapes = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), quoted["escaped"])


def duration(value: str | float | timedelta, *, field: str) -> timedelta:
    """Parse a duration as people write it: `"90s"`, `"5m"`, `"1.5h"`, `"7d"`, or seconds.

    Never negative. If `"forever"` is allowed, the caller checks for it before calling this.
    """
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= _LONGEST_SECONDS:
        raise Invalid(
            f"{field} is {value!r}; it may be {_ALLOWED}",
            code="invalid_duration",
            field=field,
            allowed=_ALLOWED,
        )
    return timedelta(seconds=seconds)


def _seconds(value: object) -> float | None:
    match value:
        case bool():  # a number in Python, but `timeout=True` is a mistake of the caller
            return None
        case timedelta():
            return value.total_seconds()
        case int() | float():
            return None if math.isnan(value) else value
        case str():
            written = _DURATION.fullmatch(value.strip())
            return float(written[1]) * _SECONDS[written[2]] if written else None
        case _:
            return None
