"""Limits on what callers hold of this process at once: bodies, answers, uploads, live streams.

Whatever a caller holds counts in several shares, the narrowest first: the share of its token, its
account or its address, and then one that all callers of its sort have in common. If the caller's
own share is full, the answer is 429; if a common share is full, it is 503. Each sort has its own
common share, so that strangers cannot use up the share of accounts, nor accounts that of the app's
own keys.
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
# For a caller without proof of identity: enough for a sign-in and for a usual callback.
STRANGER_BYTES = 64 * 1024
ADDRESS_BYTES = 4 * MEGABYTE
STRANGERS_BYTES = 16 * MEGABYTE
FUNCTIONS_BYTES = 64 * MEGABYTE
ACCOUNTS_BYTES = 128 * MEGABYTE
KEY_BYTES = 128 * MEGABYTE
KEYS_BYTES = 256 * MEGABYTE
# An incomplete body occupies its connection, however few bytes have come. Of the connections that
# file descriptors allow, one caller may occupy one in 16 this way, all callers of a sort one in 8.
CALLER_PART = 16
SORT_PART = 8
CALLER_BODIES = 1_000
SORT_BODIES = 4_000
# Answers that the clients of an account have not read yet. The largest list pages have 9 MB.
ACCOUNT_ANSWER_BYTES = 32 * MEGABYTE
# Simultaneous uploads by one account and by one other key, and the disk space of all uploads.
ACCOUNT_UPLOADS = 8
KEY_UPLOADS = 64
UPLOADS_BYTES = 1024 * MEGABYTE
# How many dashboard tabs one session may have open.
SESSION_STREAMS = 50
MOST_STREAMS = 20_000
# File descriptors that are kept for the database, files and short requests.
RESERVED_DESCRIPTORS = 64
RETRY_SECONDS = 2

_HELD = "penstock.held"


@dataclass(frozen=True, slots=True)
class Share:
    """A limit under a name."""

    name: str
    most: int
    of_all: bool = False
    """All callers of a sort have it in common, so it may be full because of others."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a body: how large the body may be, and in which shares it counts."""

    most: int
    shares: tuple[Share, ...]


FUNCTIONS = Sender(FUNCTIONS_BYTES, (Share("functions", FUNCTIONS_BYTES, of_all=True),))


class Pool:
    """How much of one resource is held, by share."""

    def __init__(
        self, name: str, thing: str, *, code: str, bounds: tuple[int, int] | None = None
    ) -> None:
        """Create a pool: metrics call it `name`, messages call it `thing`.

        `bounds`: the limits of a caller and of all callers of its sort, instead of the shares' own.
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
                f"this server has reached its limit of {self.thing}; wait until others finish",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        return RateLimited(
            f"this caller holds {self.held[share.name]} {self.thing}, and the limit is "
            f"{self.most(share)}",
            code=self.code,
            most=self.most(share),
            retry_after=RETRY_SECONDS,
            hint="Wait until some finish, and try again.",
        )


class Holding:
    """What one request holds of a pool, until the request is over."""

    __slots__ = ("_pool", "_shares", "amount")

    def __init__(self, pool: Pool, shares: Sequence[Share]) -> None:
        self._pool = pool
        self._shares = shares
        self.amount = 0

    def add(self, amount: int) -> None:
        """Hold more, or refuse and keep the amount as it was."""
        pool, held = self._pool, self._pool.held
        for share in self._shares:
            if held[share.name] + amount > pool.most(share):
                raise pool.refusal(share)
        for share in self._shares:
            held[share.name] += amount
        pool.total += amount
        self.amount += amount

    def move(self, shares: Sequence[Share]) -> None:
        """Count the held amount in other shares, because the caller is known now."""
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
    """The limits of one process: what is held of it, and by whom."""

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
        """Return the sender of a request's body, by what is known of the caller so far."""
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
        """Hold the bytes of a body, and one unfinished body: released when all of it has come."""
        return (
            self._hold(request.scope, self.bodies, sender.shares),
            self._hold(request.scope, self.sending, sender.shares, 1),
        )

    def hold_answer(self, request: Request, amount: int) -> None:
        """Hold an answer of this many bytes, until the client has read it.

        A caller without unread answers may have one of any size.
        """
        shares: tuple[Share, ...] = self.sender(request).shares
        principal = caller_of(request.scope)
        if principal is not None and principal.account is not None:
            shares = (Share(shares[0].name, ACCOUNT_ANSWER_BYTES), *shares[1:])
        most = min(self.answers.most(share) for share in shares)
        self._hold(request.scope, self.answers, shares, min(amount, most))

    def hold_upload(self, request: Request, principal: Principal, room: Room) -> Holding:
        """Hold one of the caller's simultaneous uploads; return the holding that counts its bytes.

        The bytes count against the account's remaining storage, as if they were stored already.
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
        """Hold a live stream of this caller, or refuse it."""
        shares = []
        if principal.token is not None:
            shares.append(Share(f"token {principal.token}", self._settings.token_streams))
        if principal.account is not None:
            shares.append(Share(f"account {principal.account}", self._settings.account_streams))
        return self._hold_one_stream(scope, shares)

    def may_wait(self, scope: Scope, principal: Principal) -> bool:
        """Whether a request may wait until a job finishes; it then counts as a live stream."""
        try:
            self.hold_stream(scope, principal)
        except (RateLimited, HTTPException):
            return False
        return True

    def hold_page(self, scope: Scope, session: str) -> Holding:
        """Hold the live stream of an open dashboard page."""
        return self._hold_one_stream(scope, [Share(f"session {session}", SESSION_STREAMS)])

    def _hold_one_stream(self, scope: Scope, shares: list[Share]) -> Holding:
        return self._hold(scope, self.streams, (*shares, self._all_streams), 1)

    def _hold(self, scope: Scope, pool: Pool, shares: Sequence[Share], amount: int = 0) -> Holding:
        """Hold this amount, and what is added to it, until the request is over."""
        holding = Holding(pool, shares)
        scope.setdefault(_HELD, []).append(holding)
        if amount:
            holding.add(amount)
        return holding


def limits(request: Request) -> Limits:
    limits: Limits = request.app.state.limits
    return limits


def release_all(scope: Scope) -> None:
    """Release everything that a request held, when it is over."""
    for holding in scope.pop(_HELD, ()):
        holding.release()


def most_streams() -> int:
    """How many streams are possible with enough file descriptors left for everything else."""
    return max(1, min(MOST_STREAMS, (descriptors() - RESERVED_DESCRIPTORS) * 3 // 4))


def most_bodies() -> tuple[int, int]:
    """How many bodies one caller, and all callers of its sort, may be sending at once."""
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
    """Raise this process's limit of open files as far as it may without more rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS reports no limit, but has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
