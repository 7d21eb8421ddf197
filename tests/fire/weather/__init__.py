"""Named faults, each with its own begin and end, and a random schedule of them from a seed."""
