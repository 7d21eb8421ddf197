"""Plain values that every layer may use: settings, logs, how times and names are written."""
