"""Essays: practise writing, have it scored by a slow model, and never wait for a page to load."""
