"""What callers may hold of this process at once: bodies, answers, uploads, live streams.

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

from penstock.base.settings import Settings
from penstock.engine.uploads import Room
from penstock.errors import RateLimited
from penstock.http.auth.caller import Principal, address_of, caller_of

MEGABYTE = 1024 * 1024
# Of a caller whom nothing proves: enough for a sign-in and for a usual callback.
STRANGER_BYTES = 64 * 1024
ADDRESS_BYTES = 4 * MEGABYTE
STRANGERS_BYTES = 16 * MEGABYTE
FUNCTIONS_BYTES = 64 * MEGABYTE
ACCOUNTS_BYTES = 128 * MEGABYTE
KEY_BYTES = 128 * MEGABYTE
KEYS_BYTES = 256 * MEGABYTE
# Bodies that have not ended keep their connections, however few bytes came: of the connections that
# descriptors allow, one caller may keep one in 16 so, all callers of its sort together one in 8.
CALLER_PART = 16
SORT_PART = 8
CALLER_BODIES = 1_000
SORT_BODIES = 4_000
# Answers that an account has not read yet: the largest pages of lists have 9 MB.
ACCOUNT_ANSWER_BYTES = 32 * MEGABYTE
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

    def __init__(
        self, name: str, thing: str, *, code: str, bounds: tuple[int, int] | None = None
    ) -> None:
        """`name` in metrics, `thing` in sentences.

        `bounds`: of a caller and of all callers of its sort, instead of what the shares say.
        """
        self.name = name
        self.thing = thing
        self.code = code
        self._bounds = bounds
        self.held: defaultdict[str, int] = defaultdict(int)
        self.total = 0
        self.refused = 0

    def most(self, share: Share) -> int:
        return share.most if self._bounds is None else self._bounds[share.of_all]

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
            f"{self.most(share)}",
            code=self.code,
            most=self.most(share),
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
            if held[share.name] + amount > pool.most(share):
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
        self.sending = Pool(
            "bodies", "bodies that are being sent", code="too_many_bodies", bounds=most_bodies()
        )
        self.answers = Pool("answer_bytes", "bytes of unread answers", code="too_many_answers")
        self.uploads = Pool("uploads", "uploads that are being sent", code="too_many_uploads")
        self.disk = Pool("upload_bytes", "bytes of uploads", code="too_many_uploads")
        self.streams = Pool("streams", "live streams and waiting requests", code="too_many_streams")
        self.pools = [pool for pool in vars(self).values() if isinstance(pool, Pool)]
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

    def hold_body(self, request: Request, sender: Sender) -> tuple[Holding, Holding]:
        """The bytes of a body, and one body that is being sent: released when all of it came."""
        return (
            self._hold(request.scope, self.bodies, sender.shares),
            self._hold(request.scope, self.sending, sender.shares, 1),
        )

    def hold_answer(self, request: Request, amount: int) -> None:
        """An answer of so many bytes, until the client has read it.

        A caller who has none unread may have one of any size.
        """
        shares: tuple[Share, ...] = self.sender(request).shares
        principal = caller_of(request.scope)
        if principal is not None and principal.account is not None:
            shares = (Share(shares[0].name, ACCOUNT_ANSWER_BYTES), *shares[1:])
        most = min(self.answers.most(share) for share in shares)
        self._hold(request.scope, self.answers, shares, min(amount, most))

    def hold_upload(self, request: Request, principal: Principal, room: Room) -> Holding:
        """One of the files that a caller may be sending at once; the answer counts its bytes.

        They count against what the account may still keep, as if they were kept already.
        """
        shares = [Share("all", max(UPLOADS_BYTES, 4 * room.most_bytes), of_all=True)]
        if room.left is None:
            sender = Share(f"key {principal.key or principal.who}", KEY_UPLOADS)
        else:
            sender = Share(f"account {room.account}", ACCOUNT_UPLOADS)
            shares.insert(0, Share(f"account {room.account}", room.left))
        self._hold(request.scope, self.uploads, (sender,), 1)
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
        return self._hold(scope, self.streams, (*shares, self._all_streams), 1)

    def _hold(self, scope: Scope, pool: Pool, shares: Sequence[Share], amount: int = 0) -> Holding:
        """Hold so much, and what is added to it, until the request is over."""
        holding = Holding(pool, shares)
        scope.setdefault(_HELD, []).append(holding)
        if amount:
            holding.add(amount)
        return holding


def limits(request: Request) -> Limits:
    limits: Limits = request.app.state.limits
    return limits


def release_all(scope: Scope) -> None:
    """The request is over: what it held is free for others."""
    for holding in scope.pop(_HELD, ()):
        holding.release()


def most_streams() -> int:
    """How many streams leave descriptors for everything else."""
    return max(1, min(MOST_STREAMS, (descriptors() - RESERVED_DESCRIPTORS) * 3 // 4))


def most_bodies() -> tuple[int, int]:
    """How many bodies one caller may be sending at once, and all callers of its sort."""
    connections = max(1, descriptors() - RESERVED_DESCRIPTORS)
    return (
        max(4, min(CALLER_BODIES, connections // CALLER_PART)),
        max(8, min(SORT_BODIES, connections // SORT_PART)),
    )


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
