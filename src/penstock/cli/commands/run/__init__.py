"""Commands that run a program until it is stopped: dev, serve, worker, model."""
