"""Pages about accounts: plans, credits, keys, erasure."""
