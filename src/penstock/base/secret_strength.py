"""Estimate how hard a secret is to guess, from its text alone.

Anyone who receives a message signed with a key derived from the secret can try guesses offline,
billions per second, so the secret must be random. The text does not show whether it is random, but
it shows what people invent: words, repetitions, runs along the alphabet or the keyboard. Such parts
count for little here. A random secret passes. A hash of a guessable text passes too, although it is
as weak as that text.
"""

import re
from math import log2

SHORTEST = 32
# By this estimate `openssl rand -hex 16` has about 120 bits and `openssl rand -hex 32` about 250.
LEAST_BITS = 100
HOW_TO_MAKE = (
    "make one with `openssl rand -hex 32`, or with"
    " `python3 -c 'import secrets; print(secrets.token_hex(32))'`"
)
# The information in a letter of running text (Shannon, 1951).
_WORD_BITS = 1.3
# Shorter repetitions and sequences occur in random text, too.
_SHORTEST_PATTERN = 3
# Five or more letters in a row, fewer ones between separators, and the separators themselves.
_WORD = re.compile(
    r"[A-Za-z][a-z]{4,}|[A-Z]{5,}"
    r"|(?<![^-_.])(?:[A-Za-z][a-z]{0,3}|[A-Z]{1,4})(?![^-_.])|(?<=[A-Za-z])[-_.](?=[A-Za-z])"
)
_HEX_LETTERS = frozenset("abcdefABCDEF")
_ROWS = ("1234567890", "qwertyuiop", "qwertzuiop", "azertyuiop", "asdfghjkl", "zxcvbnm", "yxcvbnm")
_RUNS = _ROWS + tuple(row[::-1] for row in _ROWS)


def why_weak(secret: str) -> str | None:
    """Return why a secret could be guessed, as the end of a sentence; None: it is strong enough."""
    if len(secret) < SHORTEST:
        return f"has {len(secret)} characters and needs at least {SHORTEST}"
    if estimate_bits(secret) < LEAST_BITS:
        return (
            "can be guessed: it consists of words, repetitions or sequences, or of few characters"
        )
    return None


def estimate_bits(secret: str) -> float:
    """Estimate how many bits an attacker must guess who knows how people invent secrets."""
    of_a_character = log2(max(2, len(set(secret))))
    in_words = _positions_in_words(secret)
    bits, at = 0.0, 0
    while at < len(secret):
        length = max(_repeated(secret, at), _sequence(secret, at))
        if length >= _SHORTEST_PATTERN:
            bits += of_a_character  # for its first character; the rest is predictable
            at += length
        else:
            bits += _WORD_BITS if at in in_words else of_a_character
            at += 1
    return bits


def _positions_in_words(text: str) -> set[int]:
    """Return the positions of characters in words. Hexadecimal letters alone make no word."""
    return {
        position
        for word in _WORD.finditer(text)
        if not _HEX_LETTERS.issuperset(word[0])
        for position in range(*word.span())
    }


def _repeated(text: str, at: int) -> int:
    """Return how many characters from here on repeat an earlier part, in upper or lower case."""
    lower = text.lower()
    length = 0
    while at + length < len(text) and lower[at : at + length + 1] in lower[:at]:
        length += 1
    return length


def _sequence(text: str, at: int) -> int:
    """Return the length of a run of one character, the alphabet, digits or a keyboard row."""
    lower = text.lower()
    longest = 1
    for step in (-1, 0, 1):
        length = 1
        while lower[at + length : at + length + 1] == chr(ord(lower[at]) + step * length):
            length += 1
        longest = max(longest, length)
    for run in _RUNS:
        length = 1
        while at + length < len(text) and lower[at : at + length + 1] in run:
            length += 1
        longest = max(longest, length)
    return longest
