"""Who is calling: an operator, a backend, a customer's key, or a browser with a short token."""

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

# How long the row of a key is cached: a revoked key is refused after this time at the latest.
FRESH_SECONDS = 1.0
TOUCH_SECONDS = 60.0
MOST_REMEMBERED = 10_000
_LONGEST_BEARER = 2_000
# How many grants of simultaneous requests share one statement.
_MOST_GRANTS = 1_000
_CALLER = "penstock.caller"
# Wrong keys from one address in a minute.
FAILURES = 30
FAILURES_SECONDS = 60.0
_NETWORK_BITS = 64

Value = TypeVar("Value")

_log = logging.getLogger("penstock.http")


class _Remembered(OrderedDict[str, Value]):
    """What is remembered by name: of MOST_REMEMBERED names, those that were set last."""

    def __setitem__(self, name: str, value: Value) -> None:
        super().__setitem__(name, value)
        self.move_to_end(name)
        if len(self) > MOST_REMEMBERED:
            self.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls, and what they may see."""

    who: Who
    holder: str
    """The scope of their idempotency keys."""
    key: str | None = None
    """The id of the key, or of the one that made the token."""
    account: str | None = None
    """They see this account's and nothing else; None: everyone's, or what the token names."""
    job: str | None = None
    topic: str | None = None
    allow: frozenset[str] = frozenset()
    expires: int | None = None
    """Of a token: the second after which it opens nothing."""
    grant: Grant | None = None
    """Of a token: what may end it before."""
    token: int | None = None
    """Of a token: a number of its own, however its text is written."""

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
        """What limits their reads of jobs: the database answers the rest as unknown."""
        return JobScope(self.account, self.topic, None if self.job is None else UUID(self.job))


class Auth:
    """Reads what a request brings. Keys are looked up once a second at most."""

    def __init__(self, keys: Keys, grants: Grants, roots: Roots) -> None:
        self._keys = keys
        self._grants = Batcher(grants.are_over, _MOST_GRANTS)
        self._roots = roots
        self._known: _Remembered[tuple[float, Key | None]] = _Remembered()
        self._touched: _Remembered[float] = _Remembered()
        self._wrong_keys = WrongKeys()
        # For keys from addresses that have sent too many wrong ones: others do not wait for them.
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
                "this key or token is not known, is revoked, or its time is over",
                code="unauthorized",
            )
        return principal

    async def identify(self, request: Request, credential: str) -> Principal | None:
        """Whose key or token a request brings; None: nobody's.

        From an address that has sent too many wrong ones, a secret that somebody chose is not
        compared any more. Keys and tokens of ours hold 256 random bits, which nobody guesses, so
        those go on: whoever shares an address with the one who sends wrong keys is not shut out.
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
        """Compare with a secret that somebody chose, unless this address has tried too often.

        Counted before it is compared, with nothing to wait for in between.
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
        """Whether this key opens, and opens everything."""
        key = await self._find_key(key_id)
        return key is not None and not key.over and key.kind == "admin"

    async def is_over(self, grant: Grant) -> bool:
        """Whether a session or token has ended before its time.

        The database is asked each time: who signs out is out at once, at all servers.
        """
        return await self._grants.ask(grant)

    def forget(self, key_id: str) -> None:
        """It was changed just now: look again."""
        self._known.pop(key_id, None)

    def forget_account(self, account: str) -> None:
        """Look up the keys of an account again, which was erased just now.

        A submit with one of them would make the account anew.
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
        except Exception:  # noqa: BLE001  # when it was used last is worth no request
            self._touched.pop(key_id, None)


def bearer(request: Request) -> str | None:
    """What the request brings: the header, or `?token=`: an EventSource sends no headers."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, credential = header.partition(" ")
        return credential.strip() if scheme.lower() == "bearer" and credential.strip() else None
    credential = request.query_params.get("token", "")
    return credential if credential.startswith(tokens.PREFIX) else None


def know_caller(scope: Scope, principal: Principal) -> None:
    """Note the caller as soon as it is known: bodies of unknown callers may be small only."""
    scope[_CALLER] = principal


def caller_of(scope: Scope) -> Principal | None:
    principal: Principal | None = scope.get(_CALLER)
    return principal


class Allowed:
    """Who may call a route; a token has to allow what the route does: `read`, `cancel`."""

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
                f"this token does not allow to {self.needs}",
                code="not_allowed",
                needs=[self.needs],
                hint=f'Ask for a token with "{self.needs}" in allow.',
            )
        return principal


def unknown_account(account: str) -> NotFound:
    """What is answered for an account that does not exist, and for another's alike."""
    return NotFound(
        f"there is no account {account}", code="unknown_account", field="account", account=account
    )


# Callers of routes, from the fewest to the most.
Operator = Annotated[Principal, Allowed("admin")]
Service = Annotated[Principal, Allowed("admin", "app")]
Submitter = Annotated[Principal, Allowed("admin", "app", "account")]
Reader = Annotated[Principal, Allowed("admin", "app", "account", "token")]
Canceller = Annotated[Principal, Allowed("admin", "app", "account", "token", needs="cancel")]


class WrongKeys:
    """How many wrong keys each address has sent; past a bound its guesses are not compared.

    Each process counts for itself. A /64 of IPv6 is one address, since a single caller has all of
    it.
    """

    def __init__(self) -> None:
        self._counts: _Remembered[tuple[float, int]] = _Remembered()

    def is_over(self, request: Request) -> bool:
        """Whether its address has sent too many."""
        return self._count(address_of(request))[1] >= FAILURES

    def add(self, request: Request) -> None:
        """Count a wrong key; refuse if its address had sent too many before."""
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
        """Count one less: the key that was counted just now is right."""
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
    """Where a request comes from, by the connection or by a proxy that we trust."""
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
    """A proxy that nobody has named looks like a caller with very many wrong keys."""
    hint = (
        ""
        if request.headers.get("x-forwarded-for") is None
        else "; if that is a proxy of yours, name it in PENSTOCK_PROXIES, or all who come through"
        " it count as one"
    )
    _log.warning(
        "%d wrong keys came from %s within a minute, more are refused%s", FAILURES, address, hint
    )
