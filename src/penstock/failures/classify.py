"""Classify failures: `classify(error)` returns the verdict on an exception of a handler.

It reads the exception and its causes from the outside in; the first one that it knows decides. A
class that the author declares (an `error_class`, an extension) is never overruled by other signs.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.base.safe_access import read
from penstock.errors import JobFailed, PenstockError
from penstock.failures.exceptions import address, sight
from penstock.failures.origin import client_of, is_elsewhere
from penstock.failures.retry_after import moment_of, retry_after
from penstock.failures.rules import rule_for
from penstock.failures.verdict import CLASSES, Charge, Circuit, Fault, Verdict
from penstock.net.provider_errors import ProviderError
from penstock.net.signal import Signal

Extension = Callable[[BaseException], str | Verdict | None]
"""A function of the app that returns a class, a verdict, or None for an unknown exception."""

_log = logging.getLogger("penstock.models")

CHAIN_MAX = 64
"""How many exceptions are read at most: causes, and members of groups."""

LEAST_WAIT = timedelta(seconds=1)
"""A free deferral waits at least this long: "again after 0 s" would loop at full speed."""

# Codes are stored and shown, so a code must look like a word.
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,80}", re.ASCII)


def classify(error: BaseException | Signal, *, more: Sequence[Extension] = ()) -> Verdict:
    """Return the verdict on a failure. It never raises: an unreadable exception is a `bug`."""
    try:
        return judge(error) if isinstance(error, Signal) else judge_exception(error, more)
    except BaseException:  # noqa: BLE001  # even an exception with broken parts settles its attempt
        return CLASSES["bug"]


def judge(signal: Signal) -> Verdict:
    """Return the verdict on a signal, by the table of rules."""
    rule = rule_for(signal)
    if rule is None:
        return _with_signal(CLASSES["bug"], signal)
    verdict = CLASSES[rule.cls]
    if signal.elsewhere:
        # It counts as a failure, so that retries are bounded; the queue's provider is not involved.
        verdict = Verdict(rule.cls, Charge.FULL, Circuit.NONE, Fault.UNKNOWN)
        return _with_signal(verdict, signal)
    return _with_signal(replace(verdict, circuit=rule.circuit or verdict.circuit), signal)


def judge_exception(error: BaseException, more: Sequence[Extension] = ()) -> Verdict:
    links = list(chain(error))
    wrapper: Signal | None = None
    around: list[BaseException] = []  # the known wrappers
    for position, link in enumerate(links):
        declared = _declared(link, more) or _ours(link)
        if isinstance(declared, Verdict):
            return declared
        sighting = sight(link)
        if declared is not None:
            return _with_signal(CLASSES[declared], sighting.signal if sighting else Signal())
        if sighting is None:
            continue
        if sighting.wraps:
            wrapper = wrapper or sighting.signal
            around.append(link)
            continue
        signal = sighting.signal
        if wrapper is not None and signal.exception == "deadline":
            signal = wrapper  # a time-out inside a library: the library's exception is more precise
        signal = _with_address(signal, wrapper, links[position:])
        return judge(_with_origin(signal, [*around, link]))
    return judge(_with_origin(wrapper, around)) if wrapper else CLASSES["bug"]


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, the members of a group, then the cause: each once, at most CHAIN_MAX."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < CHAIN_MAX:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        reason = read(link, "reason")  # of urllib and urllib3
        inner = read(link, "exceptions") if issubclass(type(link), BaseExceptionGroup) else ()
        waiting += [
            each
            for each in (reason, _cause(link), *reversed((inner or ())[:CHAIN_MAX]))
            if isinstance(each, BaseException)
        ]


def _cause(link: BaseException) -> BaseException | None:
    """Return what it was raised from; for libraries' exceptions also the exception being handled.

    A wrapper in a library may leave out the `from`. A bug in an app's `except` block is a bug.
    """
    cause: BaseException | None = read(link, "__cause__")
    if cause is None and client_of(link) and not read(link, "__suppress_context__"):
        cause = read(link, "__context__")
    return cause


def _declared(link: BaseException, more: Sequence[Extension]) -> str | Verdict | None:
    """Return the class or verdict that an extension or the exception's author declares."""
    for extension in more:
        name = getattr(extension, "__name__", "?")
        try:
            declared = extension(link)
        except BaseException as error:  # noqa: BLE001  # a failing extension declares nothing
            _log.warning("the app's classify %s raised %s", name, type(error).__name__)
            continue
        if isinstance(declared, Verdict) or (isinstance(declared, str) and declared in CLASSES):
            return declared
        if declared is not None:
            _log.warning(
                "the app's classify %s returned an unknown class; the classes are %s",
                name,
                ", ".join(CLASSES),
            )
    verdict = read(link, "verdict")  # classified already, in a handler's own process
    if isinstance(verdict, Verdict):
        return verdict
    named = read(link, "error_class")
    known = isinstance(named, str) and named in CLASSES
    if known and issubclass(type(link), JobFailed):
        # The failure of another job, counted in that job's queue: it is no sign of a failure of
        # this job's provider.
        return Verdict(named, Charge.FULL, Circuit.NONE, Fault.UNKNOWN)
    return named if known else None


def _ours(link: BaseException) -> Verdict | None:
    """Return `bug` for a refusal by Penstock itself, which is no sign of a provider's failure."""
    kind = type(link)
    if issubclass(kind, PenstockError) and not issubclass(
        kind, ProviderError | TimeoutError | ConnectionError
    ):
        return CLASSES["bug"]
    return None


def _with_address(signal: Signal, wrapper: Signal | None, links: list[BaseException]) -> Signal:
    """Add the called address from the surrounding exceptions if the deciding one has none."""
    if signal.address is not None or signal.exception == "database":
        return signal
    # Ollama's client hides httpx's exception (`from None`), and with it the address.
    hidden = read(links[0], "__context__")
    around = (*links[1:], *([hidden] if isinstance(hidden, BaseException) else ()))
    called = next(filter(None, map(address, around)), None)
    if called is None and wrapper is not None:
        called = wrapper.address
    return replace(signal, address=called)


def _with_origin(signal: Signal, links: list[BaseException]) -> Signal:
    return replace(signal, elsewhere=is_elsewhere(links, answered=signal.status is not None))


def _with_signal(verdict: Verdict, signal: Signal) -> Verdict:
    """Add the signal's facts to a verdict: address, status, code, and the requested wait."""
    after = None
    if verdict.charge is not Charge.FINAL:
        # By the provider's own clock if it sends a date: ours may differ by minutes.
        now = moment_of(signal.headers.get("date")) or datetime.now(UTC)
        after = retry_after(signal.headers, now)
    if after is not None and after < LEAST_WAIT:
        after = LEAST_WAIT if verdict.charge is Charge.FREE else None
    code = signal.code or signal.type
    return replace(
        verdict,
        after=verdict.after if after is None else after,
        address=signal.address,
        status=signal.status,
        code=code if code and _CODE.fullmatch(code) else None,
    )
