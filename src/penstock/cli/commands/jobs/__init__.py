"""Commands about jobs: submit, list, show, retry, cancel."""
