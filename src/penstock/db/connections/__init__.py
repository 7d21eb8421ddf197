"""Our own connections: finding the server, pools, listeners, and the driver's errors as ours."""
