"""The campaign: a world of real processes under random faults, and the referee that checks it."""
