"""The root secret of an installation, from which the key of each purpose is derived."""

import hashlib
import hmac
import os
import secrets
from dataclasses import replace
from pathlib import Path

from penstock.base.secret_strength import HOW_TO_MAKE, why_weak
from penstock.base.settings import Settings
from penstock.db.embedded.database import make_home
from penstock.errors import Misconfigured
from penstock.security.secret import Secret

_FILE = "secret"
_BYTES = 32


class Roots:
    """One root, or during a rotation the new one and old ones: the first signs."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.secrets = tuple(root.encode() for root in roots)
        """The roots themselves; each is also accepted as an operator's key."""
        # Registers them for redaction, so that no error quotes one: see redaction.py.
        self._secrets = tuple(Secret(root) for root in roots)

    def __repr__(self) -> str:
        return "Roots(***)"

    def keys(self, purpose: str) -> list[bytes]:
        """Return the keys for one purpose, the signing key first; they do not reveal others."""
        content = f"penstock {purpose}".encode()
        return [hmac.digest(root, content, hashlib.sha256) for root in self.secrets]

    @property
    def first(self) -> str:
        """The root that signs, which is also the operator's key."""
        return self.secrets[0].decode()


def read_roots(settings: Settings) -> Roots:
    """Read PENSTOCK_SECRET; for an embedded database, else create a secret once and keep it."""
    if settings.secrets:
        return Roots(settings.secrets)
    if settings.dsn is not None:
        raise Misconfigured(
            "PENSTOCK_SECRET is not set: it signs tokens, callbacks and webhooks, and is the "
            "operator's key. Set it, to the same value for every worker and server; "
            f"{HOW_TO_MAKE}"
        )
    return Roots((_kept(settings.home / _FILE),))


def moved(settings: Settings, dsn: str) -> Settings:
    """Return the settings for a temporary database; without a secret, with a temporary one."""
    return replace(settings, dsn=dsn, secrets=settings.secrets or (secrets.token_hex(_BYTES),))


def _kept(path: Path) -> str:
    make_home(path.parent)
    made = secrets.token_hex(_BYTES)
    beside = path.with_name(f"{path.name}.{os.getpid()}.{made[:8]}")
    try:
        secret = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        # Written completely before it gets its name: another process may read it at any moment.
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(made)
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
        finally:
            beside.unlink()
        secret = path.read_text(encoding="ascii").strip()
    weakness = why_weak(secret)
    if weakness is not None:
        raise Misconfigured(
            f"the secret in {path} {weakness}; remove the file, and a new one is created"
        )
    return secret
