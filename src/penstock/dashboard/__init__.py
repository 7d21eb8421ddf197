"""The operators' pages, which show what the engine reports and decide nothing."""
