"""Penstock's own connections: finding the server, pools, listeners, errors of the driver."""
