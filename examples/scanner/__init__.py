"""A package scanner that recovers by itself: an example app on Penstock."""
