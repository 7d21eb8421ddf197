"""One module per command of `penstock`, grouped by what the command is about."""
