"""The commands of `penstock`, one module for those about one thing."""
