"""The commands of `penstock`, one module per noun."""
