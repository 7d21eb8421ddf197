"""Handlers: what describes one (`handlers`), and those that call a model or a function."""
