"""Handlers that call a model or a function: prompts, streams, outputs, usage."""
