"""The address of a database for people: without user and password."""

from urllib.parse import parse_qs, urlsplit


def display_address(dsn: str) -> str:
    """Return host, port and database of an address, without user and password."""
    unknown = "the given address"
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return unknown
    # A later @ means that the password contains /, ? or #, so that the parts are split wrongly.
    if not parts.scheme.startswith("postgres") or "@" in parts.path + parts.query + parts.fragment:
        return unknown
    host = parts.netloc.rpartition("@")[2]
    if host:
        return host + parts.path
    hosts = parse_qs(parts.query).get("host", ["the default host"])
    return f"{', '.join(hosts)}, database {parts.path.removeprefix('/')}"
