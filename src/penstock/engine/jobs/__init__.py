"""The lifecycle of a job: submit, claim, progress, outcome, callback."""
