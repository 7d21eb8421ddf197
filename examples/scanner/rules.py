"""What is looked for in a package: tier 1 by patterns, tier 2 in what is hidden from them.

A few rules that show the idea; a real scanner brings its own. Every repetition in a pattern has a
bound: a line made for it would take hours otherwise.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MOST_FINDINGS = 20

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    what: str
    matches: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Finding:
    tier: int
    rule: str
    line: int | None
    what: str


def _pattern(name: str, what: str, pattern: str) -> Rule:
    found = re.compile(pattern, re.IGNORECASE)
    return Rule(name, what, lambda line: found.search(line) is not None)


TIER1 = (
    _pattern(
        "pipe-to-shell",
        "runs what it downloads",
        r"\b(curl|wget)\b[^|]{0,200}\|\s{0,8}(sudo )?(ba|z)?sh\b",
    ),
    _pattern(
        "delete-all", "deletes everything", r"\brm\s{1,8}-(?=\w{0,8}r)\w{1,9}\s{1,8}(/|~)(\s|\*|$)"
    ),
    _pattern("private-key", "holds a private key", r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"),
    _pattern("access-key", "holds an access key", r"\b(AKIA[0-9A-Z]{16}|sk-[A-Za-z0-9]{20,})\b"),
)

_ENCODED = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")


def _is_encoded(line: str) -> bool:
    """Whether base64 in the text hides something that tier 1 would find."""
    for piece in _ENCODED.findall(line):
        try:
            text = base64.b64decode(piece, validate=True).decode(errors="replace")
        except (ValueError, binascii.Error):
            continue
        if any(rule.matches(part) for rule in TIER1 for part in text.splitlines()):
            return True
    return False


TIER2 = (
    # Without a width, or they turn the direction of the text.
    _pattern(
        "hidden-text",
        "has characters that nobody sees",
        "[\u200b\u200c\u2060\ufeff\u202a-\u202e\u2066-\u2069]",
    ),
    Rule("encoded-command", "hides a command in base64", _is_encoded),
    _pattern(
        "override", "gives orders to a model", r"\bignore (all |any )?(previous|prior) instructions"
    ),
)
TIERS = {1: TIER1, 2: TIER2}
ORDERED = Finding(2, "ordered", None, "a finding was ordered for this demonstration")


def look(tier: int, rule: Rule, lines: Lines) -> Iterator[Finding]:
    for number, line in enumerate(lines, start=1):
        if rule.matches(line):
            yield Finding(tier, rule.name, number, rule.what)
