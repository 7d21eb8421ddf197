"""Who is calling and what that caller may see: keys, browser tokens, callbacks, wrong keys."""
