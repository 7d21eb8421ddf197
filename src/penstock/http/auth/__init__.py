"""Authentication: keys, browser tokens, callbacks, and the limit on wrong keys."""
