"""The app in Python: declare queues and jobs, submit jobs, wait for results. No HTTP, no SQL."""
