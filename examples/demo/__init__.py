"""The demo of `penstock dev` without an app: the five example systems on one page."""
