"""Authenticate callers: an operator, a backend, a customer's key or a browser's short token."""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar
from uuid import UUID

from starlette.requests import Request
from starlette.types import Scope

from penstock.engine.accounts.keys import PREFIX, Key, Keys, parts
from penstock.engine.accounts.sessions import Grant, Grants
from penstock.engine.queries.events import Batcher
from penstock.engine.queries.json_texts import Scope as JobScope
from penstock.errors import NotAllowed, NotFound, RateLimited, Unauthorized
from penstock.http.auth import tokens
from penstock.security.roots import Roots

Who = Literal["admin", "process", "app", "account", "token"]

# How long the row of a key is cached. A revoked key is refused after this time at the latest.
FRESH_SECONDS = 1.0
TOUCH_SECONDS = 60.0
MOST_REMEMBERED = 10_000
_LONGEST_BEARER = 2_000
# How many grants of simultaneous requests are checked by one statement.
_MOST_GRANTS = 1_000
_CALLER = "penstock.caller"
# How many wrong keys one address may send in a minute.
FAILURES = 30
FAILURES_SECONDS = 60.0
_NETWORK_BITS = 64

Value = TypeVar("Value")

_log = logging.getLogger("penstock.http")


class _Remembered(OrderedDict[str, Value]):
    """A cache by name that keeps the MOST_REMEMBERED names that were set last."""

    def __setitem__(self, name: str, value: Value) -> None:
        super().__setitem__(name, value)
        self.move_to_end(name)
        if len(self) > MOST_REMEMBERED:
            self.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller, and what it may see."""

    who: Who
    holder: str
    """The scope of the caller's idempotency keys."""
    key: str | None = None
    """The id of the key, or of the key that made the token."""
    account: str | None = None
    """The only account that the caller sees; None: all accounts, or what the token names."""
    job: str | None = None
    topic: str | None = None
    allow: frozenset[str] = frozenset()
    expires: int | None = None
    """Of a token: the time of its expiry, in seconds since 1970."""
    grant: Grant | None = None
    """Of a token: the session or account that may end it before it expires."""
    token: int | None = None
    """Of a token: a number that identifies it, the same for every spelling of its text."""

    @property
    def sees_all(self) -> bool:
        return self.who in ("admin", "app")

    def refuse_narrow(
        self, detail: str, hint: str = "Ask for a token for the account.", topic: str | None = None
    ) -> None:
        """Refuse a token for a job, or for another topic than this one."""
        if self.job is not None or self.topic not in (None, topic):
            raise NotAllowed(detail, code="not_allowed", hint=hint)

    @property
    def scope(self) -> JobScope:
        """The limit of the caller's reads of jobs: the database reports other jobs as unknown."""
        return JobScope(self.account, self.topic, None if self.job is None else UUID(self.job))


class Auth:
    """Authenticates requests. Each key is read from the database once a second at most."""

    def __init__(self, keys: Keys, grants: Grants, roots: Roots) -> None:
        self._keys = keys
        self._grants = Batcher(grants.are_over, _MOST_GRANTS)
        self._roots = roots
        self._known: _Remembered[tuple[float, Key | None]] = _Remembered()
        self._touched: _Remembered[float] = _Remembered()
        self._wrong_keys = WrongKeys()
        # Keys from addresses that have sent too many wrong ones are looked up one at a time, so
        # that they do not delay other requests.
        self._single_lookup = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def principal(self, request: Request) -> Principal:
        credential = bearer(request)
        if credential is None:
            raise Unauthorized(
                "this call needs a key",
                code="unauthorized",
                hint="Send Authorization: Bearer KEY; `penstock key create` makes one.",
            )
        principal = await self.identify(request, credential)
        if principal is None:
            raise Unauthorized(
                "this key or token is unknown, revoked or expired",
                code="unauthorized",
            )
        return principal

    async def identify(self, request: Request, credential: str) -> Principal | None:
        """Return the owner of a request's key or token; None: it is not valid.

        After too many wrong keys from one address, secrets that a person chose are not compared
        any more. Our own keys and tokens have 256 random bits and cannot be guessed, so they are
        still accepted: clients that share the address with an attacker are not shut out.
        """
        if not credential.startswith((tokens.PREFIX, PREFIX)):
            return self._operator(request, credential)
        if self._wrong_keys.is_over(request):
            async with self._single_lookup:
                principal = await self._read(credential)
        else:
            principal = await self._read(credential)
        if principal is None:
            self._wrong_keys.add(request)
        return principal

    def _operator(self, request: Request, credential: str) -> Principal | None:
        given = credential.encode()
        fits = self.try_secret(
            request, lambda: any(hmac.compare_digest(each, given) for each in self._roots.secrets)
        )
        return Principal(who="admin", holder="secret") if fits else None

    def try_secret(self, request: Request, fits: Callable[[], bool]) -> bool:
        """Compare with a secret that a person chose, unless this address has tried too often.

        The try is counted before the comparison and without an `await` in between, so that
        simultaneous requests cannot exceed the limit.
        """
        self._wrong_keys.add(request)
        if not fits():
            return False
        self._wrong_keys.remove(request)
        return True

    async def _read(self, credential: str) -> Principal | None:
        if len(credential) > _LONGEST_BEARER or not credential.isascii() or "\0" in credential:
            return None
        if credential.startswith(tokens.PREFIX):
            return await self._token(credential)
        return await self._key(credential)

    async def is_operators(self, key_id: str) -> bool:
        """Whether this key is valid and is an operator's."""
        key = await self._find_key(key_id)
        return key is not None and not key.over and key.kind == "admin"

    async def is_over(self, grant: Grant) -> bool:
        """Whether a session was signed out or an account was erased before the token expires.

        The database is asked each time, so signing out takes effect at once at all servers.
        """
        return await self._grants.ask(grant)

    def forget(self, key_id: str) -> None:
        """Drop a key from the cache, because it has changed."""
        self._known.pop(key_id, None)

    def forget_account(self, account: str) -> None:
        """Drop the keys of an account from the cache, because it was erased.

        Otherwise a submit with one of them would create the account again.
        """
        for key_id, (_, key) in list(self._known.items()):
            if key is not None and key.account == account:
                self.forget(key_id)

    async def _key(self, credential: str) -> Principal | None:
        id_and_secret = parts(credential)
        if id_and_secret is None:
            return None
        key_id, secret = id_and_secret
        key = await self._find_key(key_id)
        if key is None or not key.fits(secret) or key.over:
            return None
        if key.kind == "account" and key.account is None:
            return None  # its account was erased
        self._touch(key_id)
        who: Who = key.kind  # type: ignore[assignment]  # a constraint of its table
        return Principal(who=who, holder=key.holder, key=key.id, account=key.account)

    async def _token(self, credential: str) -> Principal | None:
        claims = tokens.read(self._roots, credential)
        if claims is None:
            return None
        if claims.issuer:
            key = await self._find_key(claims.issuer)
            if key is None or key.over:
                return None
        grant = claims.grant
        if grant is not None and await self.is_over(grant):
            return None
        return Principal(
            who="token",
            holder=f"token:{claims.account or claims.job or claims.topic}",
            key=claims.issuer or None,
            account=claims.account or claims.of,
            job=claims.job,
            topic=claims.topic,
            allow=claims.allow,
            expires=claims.expires,
            grant=grant,
            token=hash(claims),
        )

    async def _find_key(self, key_id: str) -> Key | None:
        now = time.monotonic()
        known = self._known.get(key_id)
        if known is not None and known[0] > now:
            return known[1]
        key = await self._keys.find(key_id)
        self._known[key_id] = (now + FRESH_SECONDS, key)
        return key

    def _touch(self, key_id: str) -> None:
        now = time.monotonic()
        if self._touched.get(key_id, 0) > now:
            return
        self._touched[key_id] = now + TOUCH_SECONDS
        task = asyncio.get_running_loop().create_task(self._write_use(key_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_use(self, key_id: str) -> None:
        try:
            await self._keys.used([key_id])
        except Exception:  # noqa: BLE001  # the time of its last use is not worth a failed request
            self._touched.pop(key_id, None)


def bearer(request: Request) -> str | None:
    """Return the credential of the header, or of `?token=`: an EventSource sends no headers."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, credential = header.partition(" ")
        return credential.strip() if scheme.lower() == "bearer" and credential.strip() else None
    credential = request.query_params.get("token", "")
    return credential if credential.startswith(tokens.PREFIX) else None


def know_caller(scope: Scope, principal: Principal) -> None:
    """Record the caller once it is known: bodies of unknown callers are limited to a small size."""
    scope[_CALLER] = principal


def caller_of(scope: Scope) -> Principal | None:
    principal: Principal | None = scope.get(_CALLER)
    return principal


class Allowed:
    """The callers that a route accepts; a token must allow what it does (`read`, `cancel`)."""

    def __init__(self, *who: Who, needs: str = "read") -> None:
        self.who = who
        self.needs = needs

    async def __call__(self, request: Request) -> Principal:
        auth: Auth = request.app.state.backend.auth
        principal = await auth.principal(request)
        know_caller(request.scope, principal)
        request.scope["penstock.key"] = principal.key or principal.who  # for the log
        if principal.who not in self.who:
            raise NotAllowed(
                f"a key of kind {principal.who} may not do this"
                if principal.who != "token"
                else "a token may not do this",
                code="not_allowed",
                needs=[role for role in self.who if role != "token"],
            )
        if principal.who == "token" and self.needs not in principal.allow:
            raise NotAllowed(
                f"this token does not allow {self.needs}",
                code="not_allowed",
                needs=[self.needs],
                hint=f'Ask for a token with "{self.needs}" in allow.',
            )
        return principal


def unknown_account(account: str) -> NotFound:
    """The same answer for an account that does not exist and for one the caller may not see."""
    return NotFound(
        f"there is no account {account}", code="unknown_account", field="account", account=account
    )


# Who may call a route, from the narrowest to the widest.
Operator = Annotated[Principal, Allowed("admin")]
Service = Annotated[Principal, Allowed("admin", "app")]
Submitter = Annotated[Principal, Allowed("admin", "app", "account")]
Reader = Annotated[Principal, Allowed("admin", "app", "account", "token")]
Canceller = Annotated[Principal, Allowed("admin", "app", "account", "token", needs="cancel")]


class WrongKeys:
    """Counts the wrong keys of each address; above a limit its guesses are not compared.

    Each process has its own counts. A /64 of IPv6 counts as one address, since a single caller
    usually has all of it.
    """

    def __init__(self) -> None:
        self._counts: _Remembered[tuple[float, int]] = _Remembered()

    def is_over(self, request: Request) -> bool:
        """Whether the request's address has sent too many wrong keys."""
        return self._count(address_of(request))[1] >= FAILURES

    def add(self, request: Request) -> None:
        """Count a wrong key; refuse the request if its address had sent too many before."""
        address = address_of(request)
        since, count = self._count(address)
        if count >= FAILURES:
            raise RateLimited(
                "too many wrong keys came from this address",
                code="too_many_failures",
                retry_after=round(max(0.0, since + FAILURES_SECONDS - time.monotonic()), 1),
            )
        self._counts[address] = (since, count + 1)
        if count + 1 == FAILURES:
            _warn(request, address)

    def remove(self, request: Request) -> None:
        """Count one less: the key that was just counted is right."""
        address = address_of(request)
        since, count = self._count(address)
        if count > 1:
            self._counts[address] = (since, count - 1)
        else:
            self._counts.pop(address, None)

    def _count(self, address: str) -> tuple[float, int]:
        now = time.monotonic()
        since, count = self._counts.get(address, (now, 0))
        return (since, count) if since + FAILURES_SECONDS > now else (now, 0)


def address_of(request: Request) -> str:
    """The client's address, from the connection or from a trusted proxy."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        network = int(address) >> _NETWORK_BITS << _NETWORK_BITS
        return f"{ipaddress.IPv6Address(network)}/{_NETWORK_BITS}"
    return host


def _warn(request: Request, address: str) -> None:
    """Warn; a proxy that is not configured appears as one caller with very many wrong keys."""
    hint = (
        ""
        if request.headers.get("x-forwarded-for") is None
        else "; if this is your proxy, name it in PENSTOCK_PROXIES: otherwise all its clients"
        " count as one"
    )
    _log.warning(
        "%d wrong keys came from %s within a minute; more are refused%s", FAILURES, address, hint
    )
