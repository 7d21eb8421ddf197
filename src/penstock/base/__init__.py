"""Basics that every layer may use: settings, logs, the wording of times and names."""
