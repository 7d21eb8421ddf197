"""The garbage collector of a process that is only a worker."""

import gc


def settle_memory() -> None:
    """Exclude the objects that are loaded by now from garbage collections.

    The collector scanned all of them again and again, which took a seventh of a worker's time
    (2026-11).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
