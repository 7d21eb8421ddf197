"""Commands about accounts: plans, credits, keys, erasure, webhooks."""
