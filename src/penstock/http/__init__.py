"""The HTTP API: routes translate between HTTP and the engine, and decide nothing."""
