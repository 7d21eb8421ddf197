"""Commands about queues and workers: state, limits, circuits, figures."""
