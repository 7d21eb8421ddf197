"""The worker's identity and lease: registration, heartbeat, and the check of the clocks."""
