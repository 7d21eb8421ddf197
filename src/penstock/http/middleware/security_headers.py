"""Headers of every answer, unless its route says otherwise: what browsers must not do with it.

They must not guess another type, keep a copy on disk, run anything in it, or show it in a frame of
another page.
"""

_NOT_FRAMED = "frame-ancestors 'none'"
NOTHING_RUNS = f"default-src 'none'; {_NOT_FRAMED}"
DEFAULTS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": NOTHING_RUNS,
}
