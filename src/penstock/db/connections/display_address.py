"""The address of a database as people see it: never with a password."""

from urllib.parse import parse_qs, urlsplit


def place(dsn: str) -> str:
    """Host, port and database of an address, without user and password."""
    unknown = "the address that was given"
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return unknown
    # A later @ means that the password has a /, ? or # in it, and that the parts are cut wrongly.
    if not parts.scheme.startswith("postgres") or "@" in parts.path + parts.query + parts.fragment:
        return unknown
    host = parts.netloc.rpartition("@")[2]
    if host:
        return host + parts.path
    hosts = parse_qs(parts.query).get("host", ["the default host"])
    return f"{', '.join(hosts)}, database {parts.path.removeprefix('/')}"
