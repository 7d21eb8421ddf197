"""The way to models and functions: handlers that call them, and what their failures mean."""
