"""Endpoints: the addresses that handlers call, given by the operator and checked once at start."""

import base64
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.errors import Invalid
from penstock.net import private_addresses
from penstock.security.secret import Secret

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL without user and password, and the settings of calls to it."""

    url: str = field(repr=False)  # its path or query may be secret
    address: str
    """host:port, for people and for the circuit's probe."""
    host: str
    local_only: bool = False
    authorization: Secret | None = None
    """From `user:password@` in the URL."""
    proxy: Secret | None = None
    public_only: bool = False
    """The address was given by a caller: see public_addresses.py."""

    def under(self, path: str) -> "Endpoint":
        """The same endpoint with another path."""
        parts = urlsplit(self.url)
        url = parts._replace(path=path).geturl()
        return replace(self, url=url)

    @property
    def path(self) -> str:
        return urlsplit(self.url).path


def read_endpoint(
    url: str,
    *,
    from_variable: bool,
    local_only: bool = False,
    proxy: Secret | None = None,
    option: str = "url",
) -> Endpoint:
    """Parse a `url`; error messages do not quote it, since it may contain a password."""
    parts = _split(url, option, ("http", "https"))
    if parts.password is not None and not from_variable:
        raise _wrong(
            option,
            "contains a password, which all readers of this file would see: put the URL into an "
            'environment variable, and write url = "$NAME" here',
        )
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    if proxy is not None:
        _split(proxy.reveal(), "proxy", ("http", "https"))
    if local_only:
        private_addresses.refuse_outside(host)
        if proxy is not None:
            raise _wrong(
                "proxy", "cannot be used on a queue with local_only: it hides where a call goes"
            )
    shown = f"[{host}]" if ":" in host else host
    bare = parts._replace(netloc=f"{shown}:{parts.port}" if parts.port else shown, fragment="")
    return Endpoint(
        bare.geturl(),
        f"{shown}:{port}",
        host,
        local_only,
        _basic(parts),
        proxy,
    )


def _split(url: object, field: str, schemes: tuple[str, ...]) -> SplitResult:
    if not isinstance(url, str) or any(ord(mark) <= 32 for mark in url):  # noqa: PLR2004
        raise _wrong(field, 'must be an address like "http://127.0.0.1:11434", without spaces')
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _wrong(field, "is not an address: its host or port cannot be read") from None
    if parts.scheme not in schemes or not parts.hostname:
        raise _wrong(
            field,
            'must begin with http:// or https:// and name a host, like "http://127.0.0.1:11434"',
        )
    return parts


def _basic(parts: SplitResult) -> Secret | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Secret(f"Basic {base64.b64encode(pair.encode()).decode()}")


def _wrong(field: str, reason: str) -> Invalid:
    return Invalid(f"{field} {reason}", code="invalid_option", field=field)
