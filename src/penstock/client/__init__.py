"""The app in Python: declare queues and jobs, submit jobs, wait for results; no HTTP, no SQL."""
