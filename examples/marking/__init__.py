"""Answers of a class, marked one at a time by a function elsewhere: an example app on Penstock."""
