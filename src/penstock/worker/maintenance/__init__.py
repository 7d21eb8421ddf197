"""What each worker does beside its jobs: upkeep, provider checks, webhooks."""
