"""What callers may hold of this process at once: bytes of bodies, uploads, live streams.

What a caller holds counts in shares, the narrowest first: its token's, its account's or its
address's, then one that all callers of its sort have together. A full share of the caller's own is
answered with 429, a full one of all with 503. Each sort has its own, so that strangers cannot use
up what accounts have, nor accounts what the app's own keys have.
"""

import resource
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Scope

from penstock.api.auth import Principal, caller_of
from penstock.api.failures import address_of
from penstock.engine.uploads import Room
from penstock.errors import RateLimited
from penstock.settings import Settings

MEGABYTE = 1024 * 1024
# Of a caller whom nothing proves: enough for a sign-in and for a usual callback.
STRANGER_BYTES = 64 * 1024
ADDRESS_BYTES = 4 * MEGABYTE
STRANGERS_BYTES = 16 * MEGABYTE
FUNCTIONS_BYTES = 64 * MEGABYTE
ACCOUNTS_BYTES = 128 * MEGABYTE
KEY_BYTES = 128 * MEGABYTE
KEYS_BYTES = 256 * MEGABYTE
# Files that are being sent: at once by one account, by one other key, and their bytes on the disk.
ACCOUNT_UPLOADS = 8
KEY_UPLOADS = 64
UPLOADS_BYTES = 1024 * MEGABYTE
# Tabs of the dashboard that one session may have open.
SESSION_STREAMS = 50
MOST_STREAMS = 20_000
# File descriptors that are kept for the database, files and short requests.
RESERVED_DESCRIPTORS = 64
RETRY_SECONDS = 2

_HELD = "penstock.held"


@dataclass(frozen=True, slots=True)
class Share:
    """So much may be held under this name."""

    name: str
    most: int
    of_all: bool = False
    """Callers have it together: that it is full is not this one's doing."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a body: how large one may be, and where it counts."""

    most: int
    shares: tuple[Share, ...]


FUNCTIONS = Sender(FUNCTIONS_BYTES, (Share("functions", FUNCTIONS_BYTES, of_all=True),))


class Pool:
    """How much of one thing is held, by share."""

    def __init__(self, name: str, thing: str, *, code: str) -> None:
        """`name` in metrics, `thing` in sentences."""
        self.name = name
        self.thing = thing
        self.code = code
        self.held: defaultdict[str, int] = defaultdict(int)
        self.total = 0
        self.refused = 0

    def refusal(self, share: Share) -> Exception:
        self.refused += 1
        if share.of_all:
            return HTTPException(
                503,
                f"this server holds as many {self.thing} as it can; others have to end first",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        return RateLimited(
            f"this caller holds {self.held[share.name]} {self.thing} at once, and may hold "
            f"{share.most}",
            code=self.code,
            most=share.most,
            retry_after=RETRY_SECONDS,
            hint="Let some end first.",
        )


class Holding:
    """What one request holds of a pool, until it is over."""

    __slots__ = ("_pool", "_shares", "amount")

    def __init__(self, pool: Pool, shares: Sequence[Share]) -> None:
        self._pool = pool
        self._shares = shares
        self.amount = 0

    def add(self, amount: int) -> None:
        """Hold more, or refuse and hold what was held."""
        pool, held = self._pool, self._pool.held
        for share in self._shares:
            if held[share.name] + amount > share.most:
                raise pool.refusal(share)
        for share in self._shares:
            held[share.name] += amount
        pool.total += amount
        self.amount += amount

    def move(self, shares: Sequence[Share]) -> None:
        """Count what is held in other shares: the caller is known by now."""
        amount = self.amount
        self.release()
        self._shares = shares
        self.add(amount)

    def release(self) -> None:
        held = self._pool.held
        for share in self._shares:
            left = held[share.name] - self.amount
            if left > 0:
                held[share.name] = left
            else:
                held.pop(share.name, None)
        self._pool.total -= self.amount
        self.amount = 0


class Limits:
    """Of one process: what is held of it, and by whom."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.bodies = Pool("body_bytes", "bytes of bodies", code="too_many_bytes")
        self.uploads = Pool("uploads", "uploads that are being sent", code="too_many_uploads")
        self.disk = Pool("upload_bytes", "bytes of uploads", code="too_many_uploads")
        self.streams = Pool("streams", "live streams and waiting requests", code="too_many_streams")
        self.pools = (self.bodies, self.uploads, self.disk, self.streams)
        self._all_streams = Share("all", most_streams(), of_all=True)

    def sender(self, request: Request) -> Sender:
        """Who sends the body of a request, by what is known of the caller so far."""
        principal = caller_of(request.scope)
        if principal is None:
            return Sender(
                STRANGER_BYTES,
                (
                    Share(f"address {address_of(request)}", ADDRESS_BYTES),
                    Share("strangers", STRANGERS_BYTES, of_all=True),
                ),
            )
        if principal.account is not None:
            most = self._settings.account_bytes
            return Sender(
                most,
                (
                    Share(f"account {principal.account}", most),
                    Share("accounts", max(most, ACCOUNTS_BYTES), of_all=True),
                ),
            )
        key = f"key {principal.key or principal.who}"
        return Sender(KEY_BYTES, (Share(key, KEY_BYTES), Share("keys", KEYS_BYTES, of_all=True)))

    def hold_body(self, request: Request, sender: Sender) -> Holding:
        return self._hold(request.scope, self.bodies, sender.shares)

    def hold_upload(self, request: Request, principal: Principal, room: Room) -> Holding:
        """One of the files that a caller may be sending at once; the answer counts its bytes.

        They count against what the account may still keep, as if they were kept already.
        """
        shares = [Share("all", max(UPLOADS_BYTES, 4 * room.most_bytes), of_all=True)]
        if room.left is None:
            place = Share(f"key {principal.key or principal.who}", KEY_UPLOADS)
        else:
            place = Share(f"account {room.account}", ACCOUNT_UPLOADS)
            shares.insert(0, Share(f"account {room.account}", room.left))
        self._hold(request.scope, self.uploads, (place,)).add(1)
        return self._hold(request.scope, self.disk, shares)

    def hold_stream(self, scope: Scope, principal: Principal) -> Holding:
        """A live stream of this caller, or a refusal."""
        shares = []
        if principal.token is not None:
            shares.append(Share(f"token {principal.token}", self._settings.token_streams))
        if principal.account is not None:
            shares.append(Share(f"account {principal.account}", self._settings.account_streams))
        return self._hold_one_stream(scope, shares)

    def may_wait(self, scope: Scope, principal: Principal) -> bool:
        """Whether a request may wait for a job to finish; what waits counts as a live stream."""
        try:
            self.hold_stream(scope, principal)
        except (RateLimited, HTTPException):
            return False
        return True

    def hold_page(self, scope: Scope, session: str) -> Holding:
        """The live stream of an open page of the dashboard."""
        return self._hold_one_stream(scope, [Share(f"session {session}", SESSION_STREAMS)])

    def _hold_one_stream(self, scope: Scope, shares: list[Share]) -> Holding:
        holding = self._hold(scope, self.streams, (*shares, self._all_streams))
        holding.add(1)
        return holding

    def _hold(self, scope: Scope, pool: Pool, shares: Sequence[Share]) -> Holding:
        holding = Holding(pool, shares)
        scope.setdefault(_HELD, []).append(holding)
        return holding


def limits(request: Request) -> Limits:
    found: Limits = request.app.state.limits
    return found


def release_all(scope: Scope) -> None:
    """The request is over: what it held is free for others."""
    for holding in scope.pop(_HELD, ()):
        holding.release()


def most_streams() -> int:
    """How many streams leave descriptors for everything else."""
    return max(1, min(MOST_STREAMS, (descriptors() - RESERVED_DESCRIPTORS) * 3 // 4))


def descriptors() -> int:
    """How many files and connections this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def raise_descriptors() -> None:
    """Allow this process as many as the system lets it have without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS names no bound and keeps one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
