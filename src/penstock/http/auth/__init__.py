"""Who is calling and what that caller may see: keys, tokens, callbacks, wrong guesses."""
