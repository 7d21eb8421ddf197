"""The checks of `penstock doctor`, each of which returns findings."""
