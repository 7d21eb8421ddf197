"""The class of a signal: one table, read from the top, in which the first matching rule decides.

The order follows the strength of the evidence: a provider's code, its type, how the answer ended,
headers, the status, and the words of a message only if nothing else decides. A few rules with two
conditions stand before the rules to which they are exceptions.
"""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from penstock.failures.verdict import Circuit
from penstock.net.signal import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule matches if all its conditions hold."""

    cls: str
    kind: Container[str] | None = None  # Signal.exception
    code: re.Pattern[str] | None = None
    type: re.Pattern[str] | None = None
    stop: re.Pattern[str] | None = None
    header: str | None = None  # is present
    status: Container[int | None] | None = None
    message: re.Pattern[str] | None = None
    oversize: bool = False  # the request is larger than the whole limit
    circuit: Circuit | None = None  # if it differs from the class's own

    def holds(self, signal: Signal) -> bool:
        return (
            (self.kind is None or signal.exception in self.kind)
            and (self.code is None or _is(self.code, signal.code))
            and (self.type is None or _is(self.type, signal.type))
            and (self.stop is None or _is(self.stop, signal.stop_reason))
            and (self.header is None or self.header in signal.headers)
            and (self.status is None or signal.status in self.status)
            and (self.message is None or self.message.search(signal.message) is not None)
            and (not self.oversize or _oversize(signal.message))
        )


def _is(pattern: re.Pattern[str], value: str | None) -> bool:
    return value is not None and pattern.fullmatch(value) is not None


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.ASCII)


# "Limit 6000, Used 0, Requested 10338": the request exceeds the limit even if nothing is used.
_LIMIT = re.compile(r"\blimit:? {0,2}([\d,]{1,15})\b", re.IGNORECASE | re.ASCII)
_REQUESTED = re.compile(r"\brequested:? {0,2}([\d,]{1,15})\b", re.IGNORECASE | re.ASCII)


def _oversize(message: str) -> bool:
    limit, requested = _LIMIT.search(message), _REQUESTED.search(message)
    if limit is None or requested is None:
        return False
    return _integer(requested[1]) > _integer(limit[1])


def _integer(digits: str) -> int:
    return int(digits.replace(",", "") or 0)


# Codes and types: providers use the same words in either of the two.
_RATE_CODES = _words("rate_limit_exceeded", "rate_limit_error", "slow_down", "too_many_requests",
                     "rate[-_]limited")  # fmt: skip
_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("quota", _words(r"insufficient_(?:quota|credits|funds)", "credit_balance_exhausted",
                     r"\w*spend_limit_(?:exceeded|reached)", r"\w*usage_limit_(?:exceeded|reached)",
                     "billing_error", "billing_hard_limit_reached", "billing_not_active",
                     "quota_exceeded")),
    ("auth", _words("invalid_api_key", "incorrect_api_key", "authentication_error",
                    "invalid_authentication", "permission_error", "permission_denied",
                    "account_deactivated", "unauthorized", "unauthenticated")),
    ("input_too_long", _words("context_length_exceeded", "exceed_context_size_error",
                              "context_window_exceeded", "string_above_max_length")),
    ("refused", _words("content_filter", "content_policy_violation", "moderation_blocked",
                       "ResponsibleAIPolicyViolation", "refusal")),
    ("config", _words("model_not_found", "model_not_available", "model_decommissioned",
                      "DeploymentNotFound", "unsupported_parameter")),
    ("rate_limited", _RATE_CODES),
    ("overloaded", _words("overloaded_error", "overloaded", "engine_overloaded",
                          "server_overloaded", "unavailable_error", "service_unavailable",
                          "capacity_exceeded")),
)  # fmt: skip


def _by_name() -> Iterator[Rule]:
    for cls, names in _NAMES:
        yield Rule(cls=cls, code=names)
    for cls, names in _NAMES:
        yield Rule(cls=cls, type=names)


_QUOTA = _words(r"credit balance is too low", r"spend(?:ing)? limit", r"billing (?:hard )?limit",
                r"exceeded your current quota", r"(?:api|monthly) usage limits?")  # fmt: skip
_NO_UPSTREAM = _words(r"no (?:healthy|live) upstream", r"upstream connect error", r"dial tcp",
                      r"connection refused", r"could not connect", r"no route to host",
                      r"failed to connect", r"no server is available",
                      r"(?:temporary failure in )?name resolution")  # fmt: skip
_TOO_LONG = _words(r"maximum context length",
                   r"context (?:length|window|size) (?:is |was )?exceeded",
                   r"exceed(?:s|ed|ing)? (?:the |its |this )?(?:model's |available |maximum )*"
                   r"(?:context|input token)", r"prompt is too long", r"input is too long",
                   r"longer than the (?:maximum )?(?:model|context)")  # fmt: skip
_NO_MODEL = _words(r"try pulling it first", r"\bno such model", r"\bunknown model",
                   r"\bmodel\b.{0,120}?(?:not found|not exist|not supported|no longer available)",
                   r"does not support (?:tools|chat|generate|thinking|insert|embed|vision)",
                   r"unsupported parameter")  # fmt: skip
_NO_KEY = _words(r"(?:invalid|incorrect) (?:x-)?api[ _-]?key", r"api key not valid",
                 r"invalid bearer token")  # fmt: skip
_REFUSED = _words(r"content (?:management )?policy", r"safety system", r"content filter")
_OVERLOADED = _words(r"\boverloaded\b", r"server busy", r"maximum pending requests",
                     r"loading model", r"(?:at|over) capacity")  # fmt: skip

_OK = range(200, 300)  # an error inside a stream
_CLIENT_ERROR = frozenset(range(400, 500))
_SERVER_ERROR = frozenset(range(500, 600))

RULES: tuple[Rule, ...] = (
    # Before any answer
    Rule(cls="unavailable", kind={"connect", "dns", "tls", "connect_timeout"}),
    # All our own connections are in use: at most the provider is slow.
    Rule(cls="unavailable", kind={"pool"}, circuit=Circuit.NONE),
    Rule(cls="timeout", kind={"deadline"}),
    Rule(cls="input_truncated", kind={"truncated_input"}),
    Rule(cls="config", kind={"remote_host", "redirect"}),
    # Similar to a rate limit, but waiting does not help
    Rule(cls="input_too_long", status={413, 429}, oversize=True),
    Rule(cls="input_too_long", status={413}, code=_RATE_CODES),
    # Code, then type
    *_by_name(),
    # How the answer ended
    Rule(cls="refused", stop=_words("content_filter", "refusal", "safety", "sensitive")),
    Rule(cls="input_too_long", stop=_words("model_context_window_exceeded")),
    Rule(cls="bad_output", stop=_words("length", "max_tokens")),
    # Headers: a 403 with Retry-After is a rate limit, not a wrong key
    Rule(cls="rate_limited", status={403}, header="retry-after"),
    # Status, with its exceptions
    Rule(cls="auth", status={401, 403}),
    Rule(cls="quota", status={402}),
    Rule(cls="quota", status={429}, message=_QUOTA),
    Rule(cls="rate_limited", status={429}),
    Rule(cls="config", status={404}, message=_NO_MODEL),
    Rule(cls="config", status={404}),
    Rule(cls="config", status=range(300, 400)),  # moved: this address is not the API's
    # 499: the provider believed that our connection was closed
    Rule(cls="unavailable", status={408, 409, 425, 499}, circuit=Circuit.NONE),
    Rule(cls="unavailable", status={502, 503}, message=_NO_UPSTREAM),
    Rule(cls="unavailable", status={521, 522, 523, 525, 526}),  # Cloudflare: origin unreachable
    Rule(cls="stalled", status={524}),  # Cloudflare: connected, but no answer for 100 s
    Rule(cls="overloaded", status={502, 503, 504, 529}),
    # Words of the message
    Rule(cls="input_too_long", message=_TOO_LONG),
    Rule(cls="config", status={None, *_OK, 400, 422}, message=_NO_MODEL),
    Rule(cls="quota", status=_CLIENT_ERROR, message=_QUOTA),
    Rule(cls="auth", status=_CLIENT_ERROR, message=_NO_KEY),
    Rule(cls="refused", status=_CLIENT_ERROR, message=_REFUSED),
    Rule(cls="overloaded", status={None, *_OK, 500}, message=_OVERLOADED),
    # The answer stopped or broke off
    Rule(cls="stalled", kind={"first_token", "stall", "read_timeout"}),
    Rule(cls="interrupted", kind={"reset", "incomplete", "pipe"}),
    # Unknown errors
    Rule(cls="invalid_request", status=_CLIENT_ERROR),
    Rule(cls="provider_error", status=_SERVER_ERROR),
    Rule(cls="bad_output", kind={"bad_json", "empty", "schema"}),
)

# For services other than the provider: their codes and words have other meanings.
ELSEWHERE: tuple[Rule, ...] = (
    Rule(cls="rate_limited", status={429}),
    Rule(cls="provider_error", status={408, 409, 425, *_SERVER_ERROR}),
    Rule(cls="invalid_request", status=range(300, 500)),
    Rule(cls="invalid_request", kind={"redirect"}),
    Rule(cls="bug", kind={"pipe"}),  # most likely to a program that the handler started
)


def rule_for(signal: Signal) -> Rule | None:
    """Return the first matching rule; None: no rule matches."""
    rules = (*ELSEWHERE, *RULES) if signal.elsewhere else RULES
    return next((rule for rule in rules if rule.holds(signal)), None)
