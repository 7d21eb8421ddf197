"""The worker's identity and lease: registration, heartbeat, clocks, the event loop's watch."""
