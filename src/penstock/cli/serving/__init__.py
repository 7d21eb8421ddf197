"""Running the HTTP API as a process: sockets, uvicorn, several processes, reload, the demo."""
