"""Known names that are similar to a misspelt one, as a sentence to add to an error."""

from collections.abc import Iterable

_MOST = 3


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a sentence like " Did you mean mail?" with a leading space; empty: none is similar."""
    if not isinstance(name, str):
        return ""
    from difflib import get_close_matches  # only loaded if a name is misspelt

    by_lower = {each.lower(): each for each in known}
    near = [by_lower[each] for each in get_close_matches(name.lower(), by_lower, _MOST)]
    if not near:
        return ""
    *first, last = near
    return f" Did you mean {', '.join(first)}{' or ' if first else ''}{last}?"
