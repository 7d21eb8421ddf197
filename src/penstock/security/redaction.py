"""Replace keys and passwords in texts before they are stored or shown; and secrets in URLs.

User, password, query and fragment of an address are removed, since they may be keys. Two sorts of
keys are replaced: known formats, in any text, and the values of secrets that this process has read
from its environment. `redaction.sql` knows the same formats, for errors from other sources; one
table of examples tests both.

Each pattern begins with fixed characters and continues with one class of characters, without
backtracking: the time is proportional to the length of the text.
"""

import re

from penstock.security import secret

TEXT_MAX = 20_000
"""How many characters are read; the rest is left out."""

_TOKEN = re.compile(r"""[^\s"'<>]+""")
_END_OF_HOST = re.compile(r"[/?#\\]")
_END_OF_PATH = re.compile(r"[?#]")
_CLOSING = re.compile(r"[)\]},.;:!]*$")


def without_secrets(text: str) -> str:
    """Return the text with each address in it cut to scheme, host and path."""
    if len(text) > TEXT_MAX:
        # Not in the middle of an address: without its "@" a password would not be recognized.
        text = text[:TEXT_MAX].rpartition(" ")[0]
    return _TOKEN.sub(_cut, text)


def _cut(match: re.Match[str]) -> str:
    token = match[0]
    scheme, mark, rest = token.partition("://")
    if mark:
        end = _END_OF_HOST.search(rest)
        host, path = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
        return f"{scheme}://{host.rpartition('@')[2]}{_path(path)}"
    # urllib3 quotes only the path, and others leave out the scheme.
    path, _, query = token.partition("?")
    return _path(token) if "/" in path and "=" in query else token


def _path(path: str) -> str:
    end = _END_OF_PATH.search(path)
    if end is None:
        return path
    closing = _CLOSING.search(path)
    return path[: end.start()] + (closing[0] if closing else "")


REDACTED = "[redacted]"

# Not in the middle of a word ("task-force"), but after an escape: %20, or \n in a repr.
_BEGIN = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt]))"
_KEYS = (
    r"sk-[A-Za-z0-9_*-]{6,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"[rsp]k_(?:live|test)_[A-Za-z0-9]{6,}",  # Stripe
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}",  # AWS
    r"AIza[A-Za-z0-9_-]{6,}",  # Google
    r"ya29(?:\.[A-Za-z0-9_-]+)+",
    r"GOCSPX-[A-Za-z0-9_-]{6,}",
    r"gh[oprsu]_[A-Za-z0-9]{6,}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{6,}",
    r"glpat-[A-Za-z0-9_-]{6,}",  # GitLab
    r"xox[a-z]-[A-Za-z0-9-]{6,}",  # Slack
    r"xapp-[A-Za-z0-9-]{6,}",
    r"hf_[A-Za-z0-9]{6,}",  # Hugging Face
    r"(?:gsk|r8|fw|npm)_[A-Za-z0-9]{16,}",  # Groq, Replicate, Fireworks, npm
    r"(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{16,}",  # xAI, Perplexity, NVIDIA
    r"dapi[0-9a-f]{32}",  # Databricks
    r"SG(?:\.[A-Za-z0-9_-]{6,})+",  # SendGrid
    r"whsec_[A-Za-z0-9+/=_-]{6,}",  # Standard Webhooks
    r"p[std]_[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*",  # our own keys and tokens
    r"eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]+)*",  # JSON Web Tokens
)
_KEY_NAMES = "api|access|secret|private|account|auth|subscription|master|signing|encryption"
_NAMES = (
    rf"(?:{_KEY_NAMES})[_-]?key(?:[_-]?id)?",
    r"(?<![A-Za-z])pass",
    r"passw(?:or)?d",
    r"passphrase",
    r"(?<![A-Za-z])pwd",
    r"secret",
    r"token",
    r"credentials?",
    r"session[_-]?id",
    r"signature",
)
# Each of the names contains one of these. Searching for them first takes a fifth of the time.
_MAY_BE_NAMED = re.compile("key|pass|pwd|secret|token|credential|session|signature", re.IGNORECASE)
_NAMED = rf"(?i)((?:{'|'.join(_NAMES)})[\"']?\s{{0,3}}"
_VALUE = r"[^\s\"',;&()\[\]{}<>]"

_PRIVATE_KEY = (
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*"
    r"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
# Any value of these headers, to the end of the line or of the quotation.
_HEADER = (
    r"(?i)((?:authorization|cookie|x-api-key)[\"']?\s{0,3}[:=]\s{0,3}(?:b(?=[\"']))?[\"']?)"
    r"[^\s\"',}\[][^\n\"',}]*"
)
# Not "Basic authentication": a value has a digit, a capital inside, or is long.
_SCHEME = (
    r"([Bb]earer|BEARER|[Bb]asic|BASIC)\s{1,3}"
    r"(?:(?=[A-Za-z._~+/=*-]{0,100}[0-9])|(?=[A-Za-z._~+/=*-]{0,100}[a-z][A-Z])"
    r"|(?=[A-Za-z._~+/=*-]{20}))[A-Za-z0-9._~+/=*-]{6,}"
)
_QUOTED = rf"{_NAMED}[=:]>?\s{{0,3}})b?(?:\"[^\"]*\"?|'[^']*'?)"
_ASSIGNED = rf"{_NAMED}=\s{{0,3}}){_VALUE}+"
# A word after a colon may be prose, but not if it has a digit.
_MENTIONED = rf"{_NAMED}:\s{{0,3}})(?=[^\s\"',;&()\[\]{{}}<>0-9]{{0,100}}[0-9]){_VALUE}{{6,}}"

_PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (_PRIVATE_KEY, REDACTED),
        (_HEADER, rf"\1{REDACTED}"),
        (rf"{_BEGIN}(?:{'|'.join(_KEYS)})", REDACTED),
        (_SCHEME, rf"\1 {REDACTED}"),
        (r"(?i)([?&](?:key|sig|auth|code)=)[^\s\"'&<>\[]+", rf"\1{REDACTED}"),
        (r"(://)[^\s/?#\"'<>\[]+@", rf"\1{REDACTED}@"),
    )
)
_NAMED_PATTERNS = tuple(re.compile(pattern) for pattern in (_QUOTED, _ASSIGNED, _MENTIONED))


def redact(text: str) -> str:
    """Return the text with keys, passwords and tokens replaced."""
    for value in secret.known():
        if value in text:
            text = text.replace(value, REDACTED)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    if _MAY_BE_NAMED.search(text):
        for pattern in _NAMED_PATTERNS:
            text = pattern.sub(rf"\1{REDACTED}", text)
    return text
