"""The options of queues, plans, kinds and submits: each is declared once, for every surface."""
