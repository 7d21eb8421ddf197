"""The HTTP API as a process: sockets, uvicorn, signals, several processes, the demo."""
