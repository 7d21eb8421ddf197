"""The command line: commands parse arguments, call the layers below, and print."""
